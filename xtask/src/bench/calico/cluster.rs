//! The benchmark's Calico cluster: an etcd in the world's namespace, and a bridge on which the nodes reach it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::calico::requests::Requests;
use crate::bench::cni::scratch::{Node, World, until};
use crate::bench::ipam::etcd::Etcd;
use crate::error::{Error, Result};
use crate::process;

/// The etcd ends when this value is dropped.
pub struct Cluster {
    etcd: Etcd,
}

const BRIDGE: &str = "fabric0";
/// On the bridge (RFC 5737). Nodes come behind it.
const ETCD: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const FIRST_NODE: u32 = 10;
/// The namespace is the benchmark's own, so the ports are free.
const PORTS: [u16; 2] = [2379, 2380];
/// etcd serves a second after its start; a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Metrics take milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

// === impl Cluster ===

impl Cluster {
    /// Starts the etcd, with its files below `directory`, and waits until it serves.
    pub fn start(directory: &Path) -> Result<Self> {
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["address", "add", &format!("{ETCD}/24"), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        let etcd = Etcd::start(&directory.join("etcd"), &ETCD.to_string(), PORTS, None)?;
        let cluster = Self { etcd };
        match until(START_LIMIT, || Ok(cluster.requests().is_ok()))? {
            true => Ok(cluster),
            false => Err(Error::Found(format!("{} does not answer", cluster.url()))),
        }
    }

    /// The URL for clients.
    pub fn url(&self) -> &str {
        &self.etcd.url
    }

    /// Another node of the world, on the bridge.
    pub fn node(&self, world: &World, number: usize) -> Result<Node> {
        let name = format!("node{number}");
        let node = world.node(&name)?;
        ip(&["link", "set", &name, "master", BRIDGE])?;
        let address = Ipv4Addr::from(u32::from(ETCD) + FIRST_NODE + number as u32);
        ip(&["-n", &name, "address", "add", &format!("{address}/24"), "dev", "uplink0"])?;
        Ok(node)
    }

    /// The requests that etcd has counted since its start.
    pub fn requests(&self) -> Result<Requests> {
        let failed = || Error::io(format!("ask {} for its metrics", self.url()));
        let address = SocketAddr::from((ETCD, PORTS[0]));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT).map_err(failed())?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed())?;
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed())?;
        Requests::parse(&answer)
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::output(Command::new("ip").args(arguments)).map(drop)
}
