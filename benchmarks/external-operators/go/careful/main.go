// An account for each tenant: found by its reference, which is the UID of the tenant, or created.
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
		if err := r.ensure(ctx, &tenant); err != nil {
			return ctrl.Result{}, err
		}
	}
	account := tenants.Account{Plan: tenant.Spec.Plan}
	return ctrl.Result{}, tenants.Call(ctx, "PATCH", "/accounts/"+tenant.Status.Key, account, nil)
}

func find(ctx context.Context, tenant *tenants.Tenant) ([]tenants.Account, error) {
	var found tenants.Accounts
	err := tenants.Call(ctx, "GET", "/accounts?reference="+string(tenant.UID), nil, &found)
	return found.Items, err
}

func (r *Reconciler) ensure(ctx context.Context, tenant *tenants.Tenant) error {
	found, err := find(ctx, tenant)
	if err != nil {
		return err
	}
	account := tenants.Account{
		Plan:      tenant.Spec.Plan,
		Tenant:    tenant.Namespace + "/" + tenant.Name,
		Reference: string(tenant.UID),
	}
	if len(found) > 0 {
		account = found[0]
	} else if err := tenants.Call(ctx, "POST", "/accounts", account, &account); err != nil {
		return err
	}
	tenant.Status.Key = account.ID
	return r.Status().Update(ctx, tenant)
}

func (r *Reconciler) delete(ctx context.Context, tenant *tenants.Tenant) error {
	found, err := find(ctx, tenant)
	if err != nil {
		return err
	}
	for _, account := range found {
		if err := tenants.Call(ctx, "DELETE", "/accounts/"+account.ID, nil, nil); err != nil {
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
