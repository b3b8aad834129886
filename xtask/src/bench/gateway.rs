//! Records written into a benchmark's etcd as others would, through its JSON gateway.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// An etcd.
pub struct Gateway {
    /// Address and port.
    etcd: String,
}

/// etcd refuses transactions of more than 128.
const PUTS_MAX: usize = 100;
/// Deleting 15,000 keys takes a moment.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

// === impl Gateway ===

impl Gateway {
    /// That of the etcd at `url`.
    pub fn new(url: &str) -> Result<Self> {
        let etcd = url.strip_prefix("http://").ok_or_else(|| Error::Found(format!("{url} is not http")))?;
        Ok(Self { etcd: etcd.to_owned() })
    }

    /// Writes one record.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.ask("put", &put(key, value))
    }

    /// Writes many.
    pub fn put_all(&self, records: &[(String, String)]) -> Result<()> {
        for some in records.chunks(PUTS_MAX) {
            let puts: Vec<Value> =
                some.iter().map(|(key, value)| json!({ "requestPut": put(key, value) })).collect();
            self.ask("txn", &json!({ "success": puts }))?;
        }
        Ok(())
    }

    /// Deletes everything from `key` on and before `end`.
    pub fn delete_range(&self, key: &str, end: &str) -> Result<()> {
        self.ask("deleterange", &json!({ "key": base64(key), "range_end": base64(end) }))
    }

    fn ask(&self, method: &str, request: &Value) -> Result<()> {
        let failed = || Error::io(format!("ask {} for kv/{method}", self.etcd));
        let mut stream = TcpStream::connect(&self.etcd).map_err(failed())?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed())?;
        let body = request.to_string();
        let head = format!(
            "POST /v3/kv/{method} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.etcd,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).map_err(failed())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed())?;
        match answer.lines().next() {
            Some(line) if line.contains(" 200 ") => Ok(()),
            _ => Err(Error::Found(format!("etcd refuses kv/{method}: {answer}"))),
        }
    }
}

fn put(key: &str, value: &str) -> Value {
    json!({ "key": base64(key), "value": base64(value) })
}

/// As etcd's JSON gateway wants keys and values.
fn base64(text: &str) -> String {
    STANDARD.encode(text)
}
