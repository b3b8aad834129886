//! How often a store has synced its disk, and how long that took: from the embedded store's counter, and from etcd's own metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Result;

/// Syncs since a store was started.
#[derive(Clone, Copy, Default)]
pub struct Syncs {
    pub count: u64,
    /// Their time in seconds, if the store reports it.
    pub seconds: Option<f64>,
}

/// Syncs of the log, for which a transaction waits; the database is synced ten times a second in
/// the background.
const WAL_SYNC: &str = "etcd_disk_wal_fsync_duration_seconds";
/// etcd answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the etcd that listens on `authority`.
pub fn of_etcd(authority: &str) -> Result<Syncs> {
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {authority}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let value = |suffix: &str| -> Result<f64> {
        let name = format!("{WAL_SYNC}_{suffix} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(name.as_str()));
        Ok(value.ok_or_else(|| format!("{authority}/metrics has no {name}"))?.parse()?)
    };
    Ok(Syncs { count: value("count")? as u64, seconds: Some(value("sum")?) })
}
