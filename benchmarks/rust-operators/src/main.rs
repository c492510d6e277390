//! The operators of benchmarks/operators/*.py on kube-rs, as its guides write them. They write the
//! same fields by as many patches, and log as many lines.

mod records;

use std::{
    collections::HashSet,
    env,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::{ApiResource, GroupVersionKind, Object},
    runtime::{
        controller::{Action, Controller},
        watcher,
    },
};
use records::Records;
use serde_json::{Map, Value, json};

type Thing = Object<Value, Value>;

const HANDLED: &str = "kopf.zalando.org/last-handled-configuration";
const FINALIZER: &str = "kopf.zalando.org/KopfFinalizerMarker";

struct Operator {
    name: String,
    client: Client,
    resource: ApiResource,
    records: Arc<Records>,
    status: bool,
    resumed: Mutex<HashSet<String>>,
}

impl Operator {
    async fn reconcile(thing: Arc<Thing>, this: Arc<Self>) -> Result<Action, kube::Error> {
        let is_done = thing.annotations().contains_key(HANDLED);
        match this.name.as_str() {
            "create" if !is_done => {
                this.handle(&thing, "Creation", &["created"]);
                this.save(&thing, json!({"created": {"ok": 1}})).await?;
            }
            "create_five" if !is_done => {
                let names = ["first", "second", "third", "fourth", "fifth"];
                this.handle(&thing, "Creation", &names);
                this.save(&thing, Value::Null).await?;
            }
            "update" if thing.annotations().get(HANDLED) != Some(&essence(&thing)) => {
                if is_done {
                    this.handle(&thing, "Updating", &["updated"]);
                }
                this.save(&thing, Value::Null).await?;
            }
            "delete" => this.delete(&thing).await?,
            "resume" => {
                let uid = thing.uid().unwrap_or_default();
                if this.resumed.lock().unwrap().insert(uid) {
                    this.handle(&thing, "Resuming", &["resumed"]);
                }
                if !is_done {
                    this.save(&thing, Value::Null).await?;
                }
            }
            "timer" => {
                this.records.add(&thing.name_any());
                tracing::info!(object = %thing.name_any(), "Timer 'tick' succeeded.");
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
            _ => {}
        }
        Ok(Action::await_change())
    }

    async fn delete(&self, thing: &Thing) -> Result<(), kube::Error> {
        let is_held = thing.finalizers().iter().any(|name| name == FINALIZER);
        let is_deleted = thing.meta().deletion_timestamp.is_some();
        if is_held != is_deleted {
            return Ok(());
        }
        let mut finalizers = thing.finalizers().to_vec();
        if is_deleted {
            self.handle(thing, "Deletion", &["deleted"]);
            finalizers.retain(|name| name != FINALIZER);
        } else {
            finalizers.push(FINALIZER.into());
        }
        self.patch(thing, json!({"metadata": {"finalizers": finalizers}}))
            .await
    }

    fn handle(&self, thing: &Thing, cause: &str, names: &[&str]) {
        let object = thing.name_any();
        self.records.add(&object);
        for name in names {
            tracing::info!(%object, "Handler '{name}' succeeded.");
        }
        tracing::info!(%object, "{cause} is processed: {} succeeded; 0 failed.", names.len());
    }

    async fn save(&self, thing: &Thing, results: Value) -> Result<(), kube::Error> {
        let mut patch = Map::new();
        patch.insert(
            "metadata".into(),
            json!({"annotations": {HANDLED: essence(thing)}}),
        );
        if !results.is_null() && !self.status {
            patch.insert("status".into(), results.clone());
        }
        self.patch(thing, patch.into()).await?;
        if !results.is_null() && self.status {
            // It is the second patch: after the first one, the cache could show an object to handle.
            let patch = Patch::Merge(json!({"status": results}));
            let params = PatchParams::default();
            self.get_api(thing)
                .patch_status(&thing.name_any(), &params, &patch)
                .await?;
        }
        Ok(())
    }

    async fn patch(&self, thing: &Thing, patch: Value) -> Result<(), kube::Error> {
        let (name, params) = (thing.name_any(), PatchParams::default());
        match self
            .get_api(thing)
            .patch(&name, &params, &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
            result => result.map(|_| ()),
        }
    }

    fn get_api(&self, thing: &Thing) -> Api<Thing> {
        let namespace = thing.namespace().unwrap_or_default();
        Api::namespaced_with(self.client.clone(), &namespace, &self.resource)
    }
}

fn essence(thing: &Thing) -> String {
    format!("{{\"spec\":{}}}\n", thing.spec)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let kind = GroupVersionKind::gvk(&env::var("BENCH_GROUP")?, "v1", &env::var("BENCH_KIND")?);
    let resource = ApiResource::from_gvk_with_plural(&kind, &env::var("BENCH_PLURAL")?);
    let records = Records::start()?;
    let client = Client::try_default().await?;
    let name = env::args().nth(1).ok_or("no operator is named")?;
    let things = Api::<Thing>::all_with(client.clone(), &resource);
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    if name == "event" {
        let seen =
            watcher(things, watcher::Config::default()).for_each(async |event| match event {
                Ok(watcher::Event::Apply(thing) | watcher::Event::InitApply(thing)) => {
                    records.add(&thing.name_any());
                }
                _ => {}
            });
        tokio::select! { _ = seen => {}, _ = terminated.recv() => {} }
    } else {
        let operator = Arc::new(Operator {
            name,
            client,
            resource: resource.clone(),
            records: records.clone(),
            status: env::var("BENCH_STATUS").is_ok_and(|value| value == "yes"),
            resumed: Mutex::default(),
        });
        let retry = |_: Arc<Thing>, error: &kube::Error, _: Arc<Operator>| {
            tracing::error!("The reconciliation has failed: {error}");
            Action::requeue(Duration::from_secs(1))
        };
        Controller::new_with(things, watcher::Config::default(), resource)
            .graceful_shutdown_on(async move { terminated.recv().await.unwrap_or_default() })
            .run(Operator::reconcile, retry, operator)
            .for_each(async |_| {})
            .await;
    }
    records.dump()?;
    Ok(())
}
