// The operators of benchmarks/operators/*.py on controller-runtime, as its guides write them. They
// write the same fields by as many patches, and log as many lines.
package main

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	handled   = "kopf.zalando.org/last-handled-configuration"
	finalizer = "kopf.zalando.org/KopfFinalizerMarker"

	// Kopf awaits many requests at a time; with only one worker, Go would wait for each of them.
	workers = 16
)

type Operator struct {
	client.Client
	records  *Records
	status   bool
	resumed  map[types.UID]bool
	resuming sync.Mutex
}

// react wraps what is done about an object that exists.
func (o *Operator) react(
	fn func(ctx context.Context, thing *Thing) (ctrl.Result, error),
) reconcile.Func {
	return func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		var thing Thing
		if err := o.Get(ctx, req.NamespacedName, &thing); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		return fn(ctx, &thing)
	}
}

func (o *Operator) create(names ...string) reconcile.Func {
	return o.react(func(ctx context.Context, thing *Thing) (ctrl.Result, error) {
		if _, done := thing.Annotations[handled]; done {
			return ctrl.Result{}, nil
		}
		o.handle(ctx, thing, "Creation", names)
		results := map[string]json.RawMessage{}
		if len(names) == 1 {
			results[names[0]] = json.RawMessage(`{"ok":1}`)
		}
		return ctrl.Result{}, o.save(ctx, thing, results)
	})
}

func (o *Operator) update() reconcile.Func {
	return o.react(func(ctx context.Context, thing *Thing) (ctrl.Result, error) {
		known, seen := thing.Annotations[handled]
		if seen && known == essence(thing) {
			return ctrl.Result{}, nil
		}
		if seen {
			o.handle(ctx, thing, "Updating", []string{"updated"})
		}
		return ctrl.Result{}, o.save(ctx, thing, nil)
	})
}

func (o *Operator) delete() reconcile.Func {
	return o.react(func(ctx context.Context, thing *Thing) (ctrl.Result, error) {
		base := thing.DeepCopy()
		if thing.DeletionTimestamp.IsZero() {
			if !controllerutil.AddFinalizer(thing, finalizer) {
				return ctrl.Result{}, nil
			}
		} else {
			if !controllerutil.ContainsFinalizer(thing, finalizer) {
				return ctrl.Result{}, nil
			}
			o.handle(ctx, thing, "Deletion", []string{"deleted"})
			controllerutil.RemoveFinalizer(thing, finalizer)
		}
		return ctrl.Result{}, client.IgnoreNotFound(o.Patch(ctx, thing, client.MergeFrom(base)))
	})
}

func (o *Operator) resume() reconcile.Func {
	return o.react(func(ctx context.Context, thing *Thing) (ctrl.Result, error) {
		o.resuming.Lock()
		resumed := o.resumed[thing.UID]
		o.resumed[thing.UID] = true
		o.resuming.Unlock()
		if !resumed {
			o.handle(ctx, thing, "Resuming", []string{"resumed"})
		}
		if _, done := thing.Annotations[handled]; done {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, o.save(ctx, thing, nil)
	})
}

func (o *Operator) tick() reconcile.Func {
	return o.react(func(ctx context.Context, thing *Thing) (ctrl.Result, error) {
		o.records.Add(thing.Name)
		log.FromContext(ctx).Info("Timer succeeded.", "timer", "tick")
		return ctrl.Result{RequeueAfter: time.Second}, nil
	})
}

func (o *Operator) handle(ctx context.Context, thing *Thing, cause string, names []string) {
	o.records.Add(thing.Name)
	logger := log.FromContext(ctx)
	for _, name := range names {
		logger.Info("Handler succeeded.", "handler", name)
	}
	logger.Info(cause+" is processed.", "succeeded", len(names), "failed", 0)
}

func (o *Operator) save(
	ctx context.Context, thing *Thing, results map[string]json.RawMessage,
) error {
	base := thing.DeepCopy()
	if thing.Annotations == nil {
		thing.Annotations = map[string]string{}
	}
	thing.Annotations[handled] = essence(thing)
	if len(results) > 0 && !o.status {
		thing.Status = results
	}
	if err := o.Patch(ctx, thing, client.MergeFrom(base)); err != nil {
		return err
	}
	if len(results) > 0 && o.status {
		// It is the second patch: after the first one, the cache could show an object to handle.
		base = thing.DeepCopy()
		thing.Status = results
		return o.Status().Patch(ctx, thing, client.MergeFrom(base))
	}
	return nil
}

func essence(thing *Thing) string {
	return `{"spec":` + string(thing.Spec) + "}\n"
}

func main() {
	ctrl.SetLogger(zap.New())
	kind := os.Getenv("BENCH_KIND")
	version := schema.GroupVersion{Group: os.Getenv("BENCH_GROUP"), Version: "v1"}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(version.WithKind(kind), &Thing{})
	scheme.AddKnownTypeWithName(version.WithKind(kind+"List"), &ThingList{})
	metav1.AddToGroupVersion(scheme, version)
	config := ctrl.GetConfigOrDie()
	config.QPS = -1 // as the API server limits by itself
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	check(err)

	o := &Operator{
		Client: manager.GetClient(), records: NewRecords(),
		status: os.Getenv("BENCH_STATUS") == "yes", resumed: map[types.UID]bool{}}
	ctx := ctrl.SetupSignalHandler()
	operators := map[string]func() reconcile.Func{
		"create":      func() reconcile.Func { return o.create("created") },
		"create_five": func() reconcile.Func { return o.create("first", "second", "third", "fourth", "fifth") },
		"update":      o.update,
		"delete":      o.delete,
		"resume":      o.resume,
		"timer":       o.tick,
	}
	if name := os.Args[1]; name == "event" {
		informer, err := manager.GetCache().GetInformer(ctx, &Thing{})
		check(err)
		see := func(object any) { o.records.Add(object.(*Thing).Name) }
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: see, UpdateFunc: func(_, object any) { see(object) }})
		check(err)
	} else {
		check(ctrl.NewControllerManagedBy(manager).
			Named(name).
			For(&Thing{}).
			WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
			Complete(operators[name]()))
	}
	check(manager.Start(ctx))
	o.records.Dump()
}

func check(err error) {
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
