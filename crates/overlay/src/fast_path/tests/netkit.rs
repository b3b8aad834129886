//! Programs at netkit pairs: where they are, and what else is there.

use russet_addr::IfName;
use russet_linux::bpf::{Attachable, Found, Point, Program, ProgramLink, Way, attached};
use russet_netlink::{Batch, Direction, LinkAdd, LinkDel, Peer, Socket};
use russet_testkit::{in_new_netns, require_kernel};

/// `r0 = TC_ACT_OK; exit` and `r0 = TC_ACT_SHOT; exit`.
const PASS: [u64; 2] = [0xb7, 0x95];
const DROP: [u64; 2] = [2 << 32 | 0xb7, 0x95];

fn load(code: [u64; 2]) -> Program {
    Program::from_instructions("test", &code).unwrap()
}

/// The indexes of the primary end and of the other one.
fn pair(socket: &mut Socket) -> [u32; 2] {
    let [host, pod] = ["host", "pod"].map(|name| IfName::new(name).unwrap());
    socket.execute(Batch::new().add_link(&LinkAdd::netkit(host, Peer::new(pod)))).unwrap();
    let links = socket.links().unwrap();
    ["host", "pod"].map(|name| {
        let link = links.iter().find(|link| link.name == name).unwrap();
        assert!(link.is_netkit() && link.is_of_pair());
        link.index
    })
}

#[test]
#[ignore = "root: bpf(2) and network namespaces; kernel: netkit"]
fn a_program_where_a_netkit_pod_sends_is_found_in_place_until_its_pair_is_gone() {
    if require_kernel("netkit").is_skip() {
        return;
    }
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let [host, pod] = pair(&mut socket);
        let program = Attachable::new(load(PASS), Way::Tcx).unwrap();
        let error = program.attach(pod, Point::NetkitPeer).unwrap_err().to_string();
        assert!(error.starts_with(&format!("attach BPF program to link {pod}: ")), "{error}");
        let is_occupied = || Way::Tcx.is_occupied(host, Point::NetkitPeer).unwrap();
        assert!(!is_occupied());
        let attachment = program.attach(host, Point::NetkitPeer).unwrap();
        assert_eq!(attachment.look(), Found { is_in_place: true, is_shared: false });
        // What it takes does not come to a program where the host end receives.
        for point in [Point::NetkitPeer, Direction::Ingress.into()] {
            let other = ProgramLink::attach(&load(DROP), host, point).unwrap();
            assert_eq!(attachment.look(), Found { is_in_place: true, is_shared: true }, "{point:?}");
            drop(other);
        }
        assert!(is_occupied());
        socket.execute(Batch::new().delete_link(&LinkDel::Index(host))).unwrap();
        assert_eq!(attachment.look(), Found::default());
        assert!(attached(host, Point::NetkitPeer).is_err());
    });
}
