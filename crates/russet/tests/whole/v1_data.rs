//! Records of Calico's v1 model, written and read as its own programs would: with plain requests to
//! etcd's v2 API.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use russet_testkit::etcd::Cluster;

use crate::node::Answer;

/// A member that serves the v2 API.
pub struct V2 {
    address: String,
}

// === impl V2 ===

impl V2 {
    pub fn at(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    /// One request: status line and body.
    fn request(&self, method: &str, target: &str, form: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} /v2/keys{target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            self.address,
            form.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    pub fn put(&self, key: &str, value: &str) {
        self.put_for(key, value, None);
    }

    /// The same with a time to live.
    pub fn put_for(&self, key: &str, value: &str, seconds: Option<u32>) {
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let ttl = seconds.map_or(String::new(), |seconds| format!("&ttl={seconds}"));
        let (status, body) = self.request("PUT", &key.replace('%', "%25"), &format!("value={escaped}{ttl}"));
        assert!(status.contains(" 20"), "{key}: {status} {body}");
    }

    /// All there is, as JSON.
    pub fn everything(&self) -> String {
        let (status, body) = self.request("GET", "/?recursive=true&sorted=true&quorum=true", "");
        assert!(status.contains(" 200"), "{status} {body}");
        body
    }
}

/// An etcd with old data behind its v2 API, for `russet migrate KIND`.
pub struct OldEtcd {
    kind: &'static str,
    pub cluster: Cluster,
    pub v2: V2,
}

// === impl OldEtcd ===

impl OldEtcd {
    pub fn new(kind: &'static str) -> Self {
        let cluster = Cluster::start(1, "http", |_| vec!["--enable-v2".to_owned()], Vec::new());
        let v2 = V2::at(&cluster.members[0].client);
        Self { kind, cluster, v2 }
    }

    pub fn migrate(&self, more: &[&str]) -> Answer {
        let (from, to) = (self.cluster.members[0].url(), self.cluster.location());
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["migrate", self.kind, "--from", &from, "--to", &to]).args(more);
        command.env_remove("RUSSET_STORE").output().unwrap().into()
    }

    /// All v3 records: keys and values, as etcdctl sees them.
    pub fn v3(&self) -> String {
        self.cluster.members[0].etcdctl(&["get", "", "--prefix"])
    }
}

/// A v1 block of 64 addresses, of which `handle` holds the first.
pub fn block(cidr: &str, node: &str, handle: &str) -> String {
    let allocations: Vec<&str> = (0..64).map(|n| if n == 0 { "0" } else { "null" }).collect();
    let free: Vec<String> = (1..64).map(|n| n.to_string()).collect();
    format!(
        r#"{{"cidr":"{cidr}","affinity":"host:{node}","strictAffinity":false,"allocations":[{}],"unallocated":[{}],"attributes":[{{"handle_id":"{handle}","secondary":{{}}}}]}}"#,
        allocations.join(","),
        free.join(",")
    )
}
