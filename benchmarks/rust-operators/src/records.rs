//! What benchmarks/operators/common.py records: the first call for each object, and the number of
//! calls. They are written to the file at the beginning, by SIGUSR1, and at the end.

use std::{
    collections::HashMap,
    env, fs, io,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Default, Serialize)]
struct Calls {
    count: u64,
    calls: HashMap<String, f64>,
}

pub struct Records {
    path: String,
    calls: Mutex<Calls>,
}

impl Records {
    pub fn start() -> io::Result<Arc<Self>> {
        let path = env::var("BENCH_CALLS").map_err(io::Error::other)?;
        let records = Arc::new(Self {
            path,
            calls: Mutex::default(),
        });
        let mut dumps = signal(SignalKind::user_defined1())?;
        let dumping = records.clone();
        tokio::spawn(async move {
            while dumps.recv().await.is_some() {
                dumping.dump().expect("the calls cannot be written");
            }
        });
        records.dump()?;
        Ok(records)
    }

    pub fn add(&self, name: &str) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut calls = self.calls.lock().unwrap();
        calls.count += 1;
        calls.calls.entry(name.into()).or_insert(now.as_secs_f64());
    }

    pub fn dump(&self) -> io::Result<()> {
        let data = serde_json::to_vec(&*self.calls.lock().unwrap())?;
        let new = format!("{}.new", self.path);
        fs::write(&new, data)?;
        fs::rename(new, &self.path)
    }
}
