//! Tests against the layouts of linux/wireguard.h, written by hand.

use super::*;
use crate::wire::{HEADER_BYTES, Messages};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn peer(endpoint: &str, allowed: &[&str]) -> Peer {
    Peer {
        key: Key([7; 32]),
        preshared: Some(Key([9; 32])),
        endpoint: Some(endpoint.parse().unwrap()),
        keepalive_s: 25,
        allowed: allowed.iter().map(|text| net(text)).collect(),
    }
}

/// An attribute as the header describes it: length, type, payload, padding.
fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len() + 4).unwrap();
    let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | 1 << 15, &parts.concat())
}

#[test]
fn a_device_gets_its_key_and_its_port() {
    let mut batch = Batch::wireguard();
    batch.set_wireguard(31, 5, &Key([1; 32]), 51820);
    let expected = [
        vec![1, 1, 0, 0],
        attribute(1, &5u32.to_ne_bytes()),
        attribute(3, &[1; 32]),
        attribute(6, &51820u16.to_ne_bytes()),
    ];
    let message = Messages::new(batch.as_bytes()).next().unwrap().unwrap();
    assert_eq!((message.kind, message.payload), (31, &expected.concat()[..]));
    assert_eq!(batch.description(0), "change 0 peers of WireGuard device 5");
}

#[test]
fn peers_are_put_whole_and_removed_by_key() {
    let mut batch = Batch::wireguard();
    let changes = [Change::Remove(Key([3; 32])), Change::Put(peer("192.0.2.1:51820", &["10.5.2.0/24"]))];
    batch.change_wireguard_peers(31, 5, &changes);
    let mut sockaddr = 2u16.to_ne_bytes().to_vec();
    sockaddr.extend([0xca, 0x6c, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let allowed = [attribute(1, &2u16.to_ne_bytes()), attribute(2, &[10, 5, 2, 0]), attribute(3, &[24])];
    let removed = [attribute(1, &[3; 32]), attribute(3, &1u32.to_ne_bytes())];
    let put = [
        attribute(1, &[7; 32]),
        attribute(3, &2u32.to_ne_bytes()),
        attribute(2, &[9; 32]),
        attribute(5, &25u16.to_ne_bytes()),
        attribute(4, &sockaddr),
        nested(9, &[nested(0, &allowed)]),
    ];
    let expected = [
        vec![1, 1, 0, 0],
        attribute(1, &5u32.to_ne_bytes()),
        nested(8, &[nested(0, &removed), nested(0, &put)]),
    ];
    assert_eq!(&batch.as_bytes()[HEADER_BYTES..], expected.concat());
    assert_eq!(batch.description(0), "change 2 peers of WireGuard device 5");
}

#[test]
fn many_peers_are_several_requests() {
    let mut batch = Batch::wireguard();
    let all: BTreeSet<IpNet> = (0..ALLOWED_MAX).map(|n| net(&format!("fd10:5:0:{n:x}::/64"))).collect();
    let largest = Peer { allowed: all, ..peer("[fd00::1]:1", &[]) };
    batch.change_wireguard_peers(31, 5, &vec![Change::Put(largest); PEERS_MAX + 1]);
    assert_eq!((batch.len(), batch.invalid), (2, None), "all of it fits");
}

#[test]
fn a_dump_is_read_back_also_when_a_peer_goes_on_in_the_next_message() {
    for endpoint in ["192.0.2.1:51820", "[fd00::1]:51821"] {
        let first = peer(endpoint, &["10.5.2.0/24"]);
        let second = Peer { allowed: [net("fd10:5:0:2::/64")].into(), ..first.clone() };
        let mut device = Device::default();
        for (number, peer) in [first.clone(), second].into_iter().enumerate() {
            let mut bytes = Vec::new();
            let mut message = MessageBuilder::new(&mut bytes, 31, 0);
            header(&mut message, WG_CMD_GET_DEVICE, WG_GENL_VERSION);
            if number == 0 {
                message.attr(WGDEVICE_A_PUBLIC_KEY, &[4; 32]).attr_u16(WGDEVICE_A_LISTEN_PORT, 51820);
            }
            message.nested(WGDEVICE_A_PEERS, |list| {
                list.nested(0, |entry| Change::Put(peer).encode(entry));
            });
            assert!(message.finish());
            device.merge(Device::decode(&Messages::new(&bytes).next().unwrap().unwrap()));
        }
        let allowed = ["10.5.2.0/24", "fd10:5:0:2::/64"].map(net).into();
        let expected = Device {
            public_key: Some(Key([4; 32])),
            listen_port: 51820,
            peers: vec![Peer { allowed, ..first }],
        };
        assert_eq!(device, expected);
    }
    assert_eq!(format!("{:?}", Key([4; 32])), "Key(..)");
}
