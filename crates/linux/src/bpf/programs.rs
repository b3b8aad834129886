//! The compiled programs. `cargo xtask gen bpf` writes these files from the sources beside them; a
//! test of xtask compiles them again and compares bytes.

/// Packets that OpenShift's tunnel device receives.
pub const SDN_INGRESS: &[u8] = include_bytes!("../../bpf/sdn_ingress.o");
/// Packets that it sends.
pub const SDN_EGRESS: &[u8] = include_bytes!("../../bpf/sdn_egress.o");
/// Packets that the host end of an OpenShift pod sends to it.
pub const SDN_DELIVERY: &[u8] = include_bytes!("../../bpf/sdn_delivery.o");
/// Packets that the host end of a pod receives, on the fast path.
pub const FAST_POD: &[u8] = include_bytes!("../../bpf/fast_pod.o");
/// The same of a netkit pair, where the pod sends.
pub const FAST_POD_NETKIT: &[u8] = include_bytes!("../../bpf/fast_pod_netkit.o");
/// Packets that the uplink receives, on the fast path.
pub const FAST_UPLINK: &[u8] = include_bytes!("../../bpf/fast_uplink.o");
/// Packets that leave the kernel's path, of which the fast path learns flows.
pub const FAST_LEARN: &[u8] = include_bytes!("../../bpf/fast_learn.o");

/// Packets that leave through the device of flannel's backend `udp`.
pub const UDP_SEND: &[u8] = include_bytes!("../../bpf/udp_send.o");
/// Packets that the uplink receives, with that backend.
pub const UDP_RECEIVE: &[u8] = include_bytes!("../../bpf/udp_receive.o");

/// Packets from a pod, in the model of the benchmark that leaves VXLAN to a device with metadata.
pub const MODEL_TUNNEL_SEND: &[u8] = include_bytes!("../../bpf/model_tunnel_send.o");
/// Packets that the device of that model receives.
pub const MODEL_TUNNEL_RECEIVE: &[u8] = include_bytes!("../../bpf/model_tunnel_receive.o");

/// Calls the program of a table, in its place at `clsact`.
pub(super) const JUMP: &[u8] = include_bytes!("../../bpf/jump.o");

/// All of them by their names.
#[cfg(test)]
pub(super) const ALL: &[(&str, &[u8])] = &[
    ("sdn_ingress", SDN_INGRESS),
    ("sdn_egress", SDN_EGRESS),
    ("sdn_delivery", SDN_DELIVERY),
    ("fast_pod", FAST_POD),
    ("fast_pod_netkit", FAST_POD_NETKIT),
    ("fast_uplink", FAST_UPLINK),
    ("fast_learn", FAST_LEARN),
    ("udp_send", UDP_SEND),
    ("udp_receive", UDP_RECEIVE),
    ("jump", JUMP),
    ("model_tunnel_send", MODEL_TUNNEL_SEND),
    ("model_tunnel_receive", MODEL_TUNNEL_RECEIVE),
];

/// A program of the loader's tests, with a map of each kind.
#[cfg(test)]
pub(super) const TEST_COUNT: &[u8] = include_bytes!("../../bpf/test_count.o");
