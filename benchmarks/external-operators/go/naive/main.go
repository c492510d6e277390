// An account for each tenant: created if the status has no key.
package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kopf.dev/benchmarks/external/tenants"
)

type Reconciler struct {
	client.Client
}

func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var tenant tenants.Tenant
	if err := r.Get(ctx, req.NamespacedName, &tenant); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !tenant.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.delete(ctx, &tenant)
	}
	if controllerutil.AddFinalizer(&tenant, tenants.Finalizer) {
		if err := r.Update(ctx, &tenant); err != nil {
			return ctrl.Result{}, err
		}
	}
	if tenant.Status.Key == "" {
		return ctrl.Result{}, r.create(ctx, &tenant)
	}
	account := tenants.Account{Plan: tenant.Spec.Plan}
	return ctrl.Result{}, tenants.Call(ctx, "PATCH", "/accounts/"+tenant.Status.Key, account, nil)
}

func (r *Reconciler) create(ctx context.Context, tenant *tenants.Tenant) error {
	account := tenants.Account{
		Plan:   tenant.Spec.Plan,
		Tenant: tenant.Namespace + "/" + tenant.Name,
	}
	if err := tenants.Call(ctx, "POST", "/accounts", account, &account); err != nil {
		return err
	}
	tenant.Status.Key = account.ID
	return r.Status().Update(ctx, tenant)
}

func (r *Reconciler) delete(ctx context.Context, tenant *tenants.Tenant) error {
	if tenant.Status.Key != "" {
		err := tenants.Call(ctx, "DELETE", "/accounts/"+tenant.Status.Key, nil, nil)
		if err != nil {
			return err
		}
	}
	if controllerutil.RemoveFinalizer(tenant, tenants.Finalizer) {
		return r.Update(ctx, tenant)
	}
	return nil
}

func main() {
	tenants.Run(func(client client.Client) reconcile.Reconciler { return &Reconciler{client} })
}
