//! The minimum cost for `cargo xtask bench cni`: a plugin process that does only the kernel's work.
//!
//! It sends the netlink messages that `attach` sends for a pod with one IPv4 address, in the same
//! order, and nothing else: no datastore, no address management, no agent, no sysctls, no undo.
//! Only the benchmark calls it; the address comes in `CNI_ARGS` (`IP=10.253.0.1`). Its DEL is the
//! deferred one: it takes both ends down and puts the host end in a group that the benchmark
//! deletes.

use std::env;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

use russet_addr::{IfName, IpNet, Mac, host_net};
use russet_linux::NetNs;
use russet_netlink::{Address, Batch, LinkAdd, LinkSet, Neighbour, Peer, Route, Socket};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the environment asks for.
struct Request {
    netns: NetNs,
    ifname: IfName,
    address: Ipv4Addr,
    owner: String,
}

/// The gateway of every pod, calico-cni.md section 3.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The group of host ends after DEL; `xtask/src/bench/cni/floor.rs` deletes it.
const DOOMED_GROUP: u32 = 7274;
/// `attach` creates links in a group of their own, too, until they have their alias.
const PRECREATED_GROUP: u32 = 7275;
/// As on a 1500-byte underlay below VXLAN.
const MTU_BYTES: u32 = 1450;

fn main() -> ExitCode {
    match run().and_then(|answer| Ok(io::stdout().write_all(answer.as_bytes())?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard output is where CNI errors go; if it is closed there is no way to report
            // one.
            let _ = writeln!(io::stdout(), r#"{{"cniVersion":"1.0.0","code":999,"msg":"{error}"}}"#);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String> {
    // A plugin reads its configuration; this one has no use for it.
    io::stdin().read_to_end(&mut Vec::new())?;
    let request = Request::from_env()?;
    match variable("CNI_COMMAND")?.as_str() {
        "ADD" => add(&request),
        "DEL" => delete(&request).map(|()| String::new()),
        other => Err(format!("no command {other}").into()),
    }
}

fn add(request: &Request) -> Result<String> {
    let mut host = Socket::route()?;
    let mut pod = request.netns.with(Socket::route)??;
    host.execute(Batch::new().add_link(&request.veth()?))?;
    let host_end = host.link_by_name(&request.host_name()?)?;
    let pod_index = host_end.link.ok_or("the veth has no other end")?;
    let (index, alias) = (host_end.index, Some(request.owner.clone()));
    host.execute(Batch::new().set_link(&LinkSet { alias, group: Some(0), ..LinkSet::index(index) }))?;

    let address = IpAddr::V4(request.address);
    let everything: IpNet = "0.0.0.0/0".parse()?;
    let mut inside = Batch::new();
    inside.set_link(&LinkSet { up: Some(true), ..LinkSet::index(pod_index) });
    inside.add_address(&Address::new(pod_index, host_net(address)));
    inside.replace_neighbour(&Neighbour::permanent(pod_index, GATEWAY.into(), Mac::GATEWAY));
    inside.add_route(&Route::dev(host_net(GATEWAY.into()), pod_index));
    inside.add_route(&Route { oif: Some(pod_index), ..Route::via(everything, GATEWAY.into()) });
    pod.execute(&inside)?;

    let mut outside = Batch::new();
    outside.replace_neighbour(&Neighbour::permanent(index, address, request.pod_mac()));
    outside.set_link(&LinkSet { up: Some(true), ..LinkSet::index(index) });
    outside.add_route(&Route::dev(host_net(address), index));
    host.execute(&outside)?;
    pod.link_by_index(pod_index)?;
    Ok(format!(r#"{{"cniVersion":"1.0.0","ips":[{{"address":"{}/32"}}]}}"#, request.address))
}

fn delete(request: &Request) -> Result<()> {
    let mut host = Socket::route()?;
    let mut pod = request.netns.with(Socket::route)??;
    let pod_end = pod.link_by_name(&request.ifname)?;
    let index = pod_end.link.ok_or("the veth has no other end")?;
    doom(&mut host, index, Some(DOOMED_GROUP))?;
    doom(&mut pod, pod_end.index, None)
}

fn doom(socket: &mut Socket, index: u32, group: Option<u32>) -> Result<()> {
    let name = Some(IfName::new(format!("flx{index}"))?);
    let mut batch = Batch::new();
    batch.set_link(&LinkSet { up: Some(false), group, ..LinkSet::index(index) });
    batch.set_link(&LinkSet { name, ..LinkSet::index(index) });
    Ok(socket.execute(&batch)?)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}

// === impl Request ===

impl Request {
    fn from_env() -> Result<Self> {
        let arguments = variable("CNI_ARGS")?;
        let address =
            arguments.split(';').find_map(|pair| pair.strip_prefix("IP=")).ok_or("CNI_ARGS has no IP")?;
        let (container, ifname) = (variable("CNI_CONTAINERID")?, variable("CNI_IFNAME")?);
        Ok(Self {
            netns: NetNs::open(variable("CNI_NETNS")?)?,
            address: address.parse()?,
            owner: format!("floor:{container}:{ifname}"),
            ifname: IfName::new(ifname)?,
        })
    }

    fn veth(&self) -> Result<LinkAdd> {
        let peer = Peer {
            netns: Some(self.netns.as_raw_fd()),
            mtu_bytes: Some(MTU_BYTES),
            mac: Some(self.pod_mac()),
            ..Peer::new(self.ifname.clone())
        };
        Ok(LinkAdd {
            mtu_bytes: Some(MTU_BYTES),
            mac: Some(Mac::GATEWAY),
            group: Some(PRECREATED_GROUP),
            ..LinkAdd::veth(self.host_name()?, peer)
        })
    }

    fn host_name(&self) -> Result<IfName> {
        Ok(IfName::new(format!("flr{:08x}", self.address.to_bits()))?)
    }

    fn pod_mac(&self) -> Mac {
        let [a, b, c, d] = self.address.octets();
        Mac([0x02, 0x00, a, b, c, d])
    }
}
