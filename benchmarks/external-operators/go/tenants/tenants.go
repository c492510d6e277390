// Package tenants has what both operators share: the kind, the billing API, and the manager.
package tenants

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const Finalizer = "benchmarks.kopf.dev/billing"

type Spec struct {
	Plan string `json:"plan"`
}

type Status struct {
	Key string `json:"key,omitempty"`
}

type Tenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec,omitempty"`
	Status            Status `json:"status,omitempty"`
}

type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tenant `json:"items"`
}

func (in *Tenant) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (in *TenantList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Tenant, len(in.Items))
	for i := range in.Items {
		out.Items[i] = *in.Items[i].DeepCopyObject().(*Tenant)
	}
	return &out
}

type Account struct {
	ID        string `json:"id,omitempty"`
	Plan      string `json:"plan,omitempty"`
	Tenant    string `json:"tenant,omitempty"`
	Reference string `json:"reference,omitempty"`
}

type Accounts struct {
	Items []Account `json:"items"`
}

var billing = http.Client{Timeout: 2 * time.Second}

// Call calls the billing API. To delete what is not there is a success.
func Call(ctx context.Context, method, path string, body, result any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	url := os.Getenv("BILLING_URL") + path
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	response, err := billing.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound && method == http.MethodDelete:
		return nil
	case response.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	case result == nil:
		return nil
	}
	return json.NewDecoder(response.Body).Decode(result)
}

// Run runs an operator for the tenants until it is told to stop.
func Run(make func(client.Client) reconcile.Reconciler) {
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	version := schema.GroupVersion{Group: "benchmarks.kopf.dev", Version: "v1"}
	scheme.AddKnownTypes(version, &Tenant{}, &TenantList{})
	metav1.AddToGroupVersion(scheme, version)
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	check(err)
	check(ctrl.NewControllerManagedBy(manager).
		For(&Tenant{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(make(manager.GetClient())))
	check(manager.Start(ctrl.SetupSignalHandler()))
}

func check(err error) {
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
