// The operator of benchmarks/operators/reconcile.py on controller-runtime, as its guides write it.
package main

import (
	"context"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

type Reconciler struct {
	client.Client
	Scheme *runtime.Scheme
}

func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var site Website
	if err := r.Get(ctx, req.NamespacedName, &site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	meta := metav1.ObjectMeta{Name: site.Name, Namespace: site.Namespace}
	labels := map[string]string{"website": site.Name}

	page := &corev1.ConfigMap{ObjectMeta: meta}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, page, func() error {
		page.Data = map[string]string{"index.html": site.Spec.Text}
		return controllerutil.SetControllerReference(&site, page, r.Scheme)
	}); err != nil {
		return ctrl.Result{}, err
	}

	server := &appsv1.Deployment{ObjectMeta: meta}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, server, func() error {
		server.Spec.Replicas = &site.Spec.Replicas
		server.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		server.Spec.Template.Labels = labels
		pod := &server.Spec.Template.Spec
		if len(pod.Containers) != 1 {
			pod.Containers = make([]corev1.Container, 1)
		}
		pod.Containers[0].Name = "server"
		pod.Containers[0].Image = "nginx"
		pod.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "page", MountPath: "/usr/share/nginx/html"}}
		mode := int32(0o644)
		pod.Volumes = []corev1.Volume{{Name: "page", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: site.Name},
				DefaultMode:          &mode,
			}}}}
		return controllerutil.SetControllerReference(&site, server, r.Scheme)
	}); err != nil {
		return ctrl.Result{}, err
	}

	service := &corev1.Service{ObjectMeta: meta}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, service, func() error {
		service.Spec.ClusterIP = corev1.ClusterIPNone // addresses are few
		service.Spec.Selector = labels
		service.Spec.Ports = []corev1.ServicePort{
			{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}}
		return controllerutil.SetControllerReference(&site, service, r.Scheme)
	}); err != nil {
		return ctrl.Result{}, err
	}

	status := WebsiteStatus{Ready: true, ReadyReplicas: server.Status.ReadyReplicas}
	if site.Status != status {
		site.Status = status
		return ctrl.Result{}, r.Status().Update(ctx, &site)
	}
	return ctrl.Result{}, nil
}

func main() {
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, func(scheme *runtime.Scheme) error {
		version := schema.GroupVersion{Group: "benchmarks.kopf.dev", Version: "v1"}
		scheme.AddKnownTypes(version, &Website{}, &WebsiteList{})
		metav1.AddToGroupVersion(scheme, version)
		return nil
	})
	check(builder.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	check(err)
	check(ctrl.NewControllerManagedBy(manager).
		For(&Website{}).
		Owns(&corev1.ConfigMap{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Complete(&Reconciler{manager.GetClient(), scheme}))
	check(manager.Start(ctrl.SetupSignalHandler()))
}

func check(err error) {
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
