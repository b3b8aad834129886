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
/// Packets that the uplink receives, on the fast path.
pub const FAST_UPLINK: &[u8] = include_bytes!("../../bpf/fast_uplink.o");
/// Packets that leave the kernel's path, of which the fast path learns flows.
pub const FAST_LEARN: &[u8] = include_bytes!("../../bpf/fast_learn.o");

/// All of them by their names.
#[cfg(test)]
pub(super) const ALL: &[(&str, &[u8])] = &[
    ("sdn_ingress", SDN_INGRESS),
    ("sdn_egress", SDN_EGRESS),
    ("sdn_delivery", SDN_DELIVERY),
    ("fast_pod", FAST_POD),
    ("fast_uplink", FAST_UPLINK),
    ("fast_learn", FAST_LEARN),
];

/// A program of the loader's tests, with a map of each kind.
#[cfg(test)]
pub(super) const TEST_COUNT: &[u8] = include_bytes!("../../bpf/test_count.o");
