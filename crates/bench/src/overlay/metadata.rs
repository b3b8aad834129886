//! A model of data paths whose BPF programs leave VXLAN to a device with metadata, as Cilium's do: from the pod to the
//! device and from that to the pod past netfilter and routes (dataplane.md section 7, e2). Unlike such
//! a path it judges no packet and tracks no connection.

use std::collections::BTreeMap;

use russet_linux::bpf::{Map, Object, Program, ProgramLink, programs};
use russet_netlink::{Batch, Direction, LinkAdd, LinkKind, Socket, Vxlan};

use crate::overlay::node::{HOST_END, Node, mac, name, up};
use crate::overlay::stage::VXLAN_PORT;
use crate::{BoxError, Result};

/// Both programs of a node. Dropping it detaches them.
pub struct MetadataTunnel {
    _links: [ProgramLink; 2],
}

const DEVICE: &str = "vxlan_sys";

/// Makes the device and attaches the programs at a node with a routed pod.
pub fn start(node: &mut Node, other: &Node, mtu_bytes: u32) -> Result<MetadataTunnel> {
    let vxlan = Vxlan { collect_metadata: true, ..Vxlan::new(0, VXLAN_PORT) };
    let link = LinkAdd { mtu_bytes: Some(mtu_bytes), ..LinkAdd::new(name(DEVICE)?, LinkKind::Vxlan(vxlan)) };
    node.netlink.execute(Batch::new().add_link(&link))?;
    let device = node.netlink.link_by_name(&name(DEVICE)?)?.index;
    up(&mut node.netlink, device, None)?;
    let host_end = node.netlink.link_by_name(&name(HOST_END)?)?.index;
    let host_mac = mac(&mut node.netlink, host_end)?;
    let pod_mac = {
        let mut pod = node.pod.with(Socket::route)??;
        let index = pod.link_by_name(&name("eth0")?)?.index;
        mac(&mut pod, index)?
    };
    let remote = [u32::from(other.address()).to_ne_bytes(), device.to_ne_bytes()].concat();
    let pod = [&host_end.to_ne_bytes()[..], &pod_mac.octets(), &host_mac.octets()].concat();
    let send = load(programs::MODEL_TUNNEL_SEND, "remotes", (&other.base().octets(), &remote))?;
    let receive = load(programs::MODEL_TUNNEL_RECEIVE, "pods", (&node.pod_address().octets(), &pod))?;
    let links = node.host.with(|| {
        Ok::<_, BoxError>([
            ProgramLink::attach(&send, host_end, Direction::Ingress)?,
            ProgramLink::attach(&receive, device, Direction::Ingress)?,
        ])
    })??;
    Ok(MetadataTunnel { _links: links })
}

/// A program, and one entry of its map.
fn load(object: &[u8], map: &str, (key, value): (&[u8], &[u8])) -> Result<Program> {
    let object = Object::read(object)?;
    let created = object.maps().iter().map(|it| Ok((it.name.clone(), Map::create(it)?)));
    let maps: BTreeMap<String, Map> = created.collect::<Result<_>>()?;
    maps.get(map).ok_or_else(|| format!("no map {map}"))?.put(key, value)?;
    Ok(Program::load(&object, &maps.values().collect::<Vec<_>>())?)
}
