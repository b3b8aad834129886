//! `russet store`: owns the embedded store, or accesses the records of any store.

use russet_agent::Paths;
use russet_model::{Key, Prefix};
use russet_store::{Record, Step};
use serde::Serialize;
use serde_json::value::RawValue;

use super::place::Place;
use super::{Failure, logging, runtime, stop_signal};
use crate::cli::LogFormat;
use crate::cli::store::{StoreArgs, StoreChoice, StoreVerb};
use crate::output;
use crate::settings::Logging;

/// Records of a store; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct Dump {
    schema: u32,
    revision: u64,
    records: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    revision: u64,
    /// The value itself, or a string if it is not JSON.
    value: Box<RawValue>,
}

pub fn run(args: StoreArgs) -> Result<(), Failure> {
    match args.verb {
        StoreVerb::Serve { root } => {
            logging::start(&Logging { level: "info".to_owned(), format: LogFormat::Text })?;
            runtime()?.block_on(serve(Paths::new(root)))
        }
        StoreVerb::Dump { place, prefix } => runtime()?.block_on(dump(place, &prefix)),
        StoreVerb::Put { place, key, value } => runtime()?.block_on(put(place, key, value)),
    }
}

async fn serve(paths: Paths) -> Result<(), Failure> {
    let opened = russet_agent::own_store(&paths).await?;
    let Some(service) = opened.service else { return Ok(()) };
    let stop = stop_signal()?;
    tracing::info!(dir = %paths.state_dir().display(), socket = %paths.store_socket().display(), "store served");
    let served = async {
        tokio::select! {
            () = service => {}
            () = stop => {}
        }
    };
    tokio::task::LocalSet::new().run_until(served).await;
    Ok(())
}

async fn dump(place: StoreChoice, prefix: &str) -> Result<(), Failure> {
    let place = Place::open(place).await?;
    let snapshot = place.store.list(&Prefix::from_stored(prefix)).await?;
    let records = snapshot.records.into_iter().map(entry).collect();
    output::print(&output::json(&Dump { schema: 1, revision: snapshot.revision.0, records }));
    Ok(())
}

async fn put(place: StoreChoice, key: String, value: String) -> Result<(), Failure> {
    let place = Place::open_or_make(place).await?;
    place.store.commit(vec![Step::put(Key::from_stored(key), value)]).await.map_err(|error| error.error)?;
    Ok(())
}

fn entry(record: Record) -> Entry {
    let text = String::from_utf8_lossy(&record.value).into_owned();
    let value = match RawValue::from_string(text.clone()) {
        Ok(value) => value,
        Err(_) => RawValue::from_string(serde_json::Value::from(text).to_string())
            .unwrap_or_else(|_| RawValue::NULL.to_owned()),
    };
    Entry { key: record.key.as_str().to_owned(), revision: record.revision.0, value }
}
