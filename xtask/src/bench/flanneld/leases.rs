//! Other nodes' leases, written into etcd as their daemons would, through its JSON gateway.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The network in etcd.
pub struct Leases {
    /// Address and port.
    etcd: String,
}

const PREFIX: &str = "/coreos.com/network";
const CONFIG: &str = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
/// etcd refuses transactions of more than 128.
const PUTS_MAX: usize = 100;
/// Deleting 15,000 keys takes a moment.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

// === impl Leases ===

impl Leases {
    /// On the etcd at `url`.
    pub fn new(url: &str) -> Result<Self> {
        let etcd = url.strip_prefix("http://").ok_or_else(|| Error::Found(format!("{url} is not http")))?;
        Ok(Self { etcd: etcd.to_owned() })
    }

    /// Writes the network's configuration.
    pub fn configure(&self) -> Result<()> {
        self.ask("put", &json!({ "key": base64(&format!("{PREFIX}/config")), "value": base64(CONFIG) }))
    }

    /// Makes it exactly the leases 1 to `count`.
    pub fn fill(&self, count: usize) -> Result<()> {
        let subnets = format!("{PREFIX}/subnets/");
        let end = format!("{PREFIX}/subnets0");
        self.ask("deleterange", &json!({ "key": base64(&subnets), "range_end": base64(&end) }))?;
        let numbers: Vec<usize> = (1..=count).collect();
        for some in numbers.chunks(PUTS_MAX) {
            let puts: Vec<Value> = some.iter().map(|number| json!({ "requestPut": put(*number) })).collect();
            self.ask("txn", &json!({ "success": puts }))?;
        }
        Ok(())
    }

    /// Puts one more.
    pub fn put(&self, number: usize) -> Result<()> {
        self.ask("put", &put(number))
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

/// Lease `number`: its subnet from 10.64.0.0 on, its node's address from 172.16.0.0 on, and a MAC of its own.
fn put(number: usize) -> Value {
    let (high, low) = (number >> 8, number & 0xff);
    let key = format!("{PREFIX}/subnets/10.{}.{low}.0-24", 64 + high);
    let mac = format!("02:00:00:00:{high:02x}:{low:02x}");
    let value = format!(
        r#"{{"PublicIP":"172.16.{high}.{low}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    );
    json!({ "key": base64(&key), "value": base64(&value) })
}

/// As etcd's JSON gateway wants keys and values.
fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_have_subnets_and_macs_of_their_own() {
        let one = put(257);
        assert_eq!(one["key"], base64("/coreos.com/network/subnets/10.65.1.0-24"));
        assert_ne!(one["value"], put(1)["value"]);
    }
}
