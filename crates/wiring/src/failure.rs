//! Maps errors of the lower crates to CNI error codes (docs/errors.md).

use std::fmt::Display;

use russet_addr::NodeName;
use russet_attach::nat::NatError;
use russet_attach::{AttachCause, AttachError, ShapeError};
use russet_cni_spec::CniError;
use russet_ipam::IpamError;
use russet_model::Key;
use russet_store::StoreError;

/// Every block that this node may use is full, and no new one can be claimed.
pub const NO_ADDRESS: u32 = 100;
/// This node has as many blocks as it may have.
pub const BLOCK_LIMIT: u32 = 101;
/// A record in the store cannot be parsed.
pub const CORRUPT_RECORD: u32 = 102;
/// The kernel refused a step.
pub const WIRING: u32 = 103;
/// The store's disk is full.
pub const STORE_FULL: u32 = 104;

/// A port of the node belongs to another container.
pub const PORT_TAKEN: u32 = 105;
/// Kubernetes has no such pod, or no such namespace.
pub const NO_SUCH_POD: u32 = 106;
/// OpenShift's server on this node refused the request, or its answer is unusable.
pub const SERVER: u32 = 110;

/// The interface could not be wired; what had been done was undone.
pub fn attach(error: AttachError) -> CniError {
    let msg = "the interface could not be set up";
    match &*error.cause {
        AttachCause::Vanished(_) => CniError::try_again_later(msg, error),
        AttachCause::Refused(_) => CniError::try_again_later(
            "the interface's verdict is not in force, and so it was not set up",
            error,
        ),
        _ => CniError::new(WIRING, msg, error),
    }
}

/// A pod's traffic could not be limited. A kernel without the feature gets an error of its own,
/// because no ADD of this pod can succeed there.
pub fn shape(error: ShapeError) -> CniError {
    match error {
        missing @ ShapeError::Kernel { .. } => {
            CniError::unsupported_field("bandwidth: this kernel cannot limit traffic", missing)
        }
        other => CniError::new(WIRING, "bandwidth: the limits could not be set", other),
    }
}

/// nf_tables could not be changed.
pub fn nat(error: NatError) -> CniError {
    CniError::new(WIRING, "the node's address translation could not be changed", error)
}

/// No address could be allocated, or it could not be released.
pub fn ipam(msg: &str, error: IpamError) -> CniError {
    match &error {
        IpamError::Store { source, .. } => self::store(msg, source, &error),
        IpamError::BlockLimit { .. } => CniError::new(BLOCK_LIMIT, msg, error),
        IpamError::Corrupt { .. } => CniError::new(CORRUPT_RECORD, msg, error),
        IpamError::NodeUnknown { node, .. } => unknown_node(node),
        IpamError::PoolMissing { .. } | IpamError::PoolFamily { .. } => CniError::invalid_config(msg, error),
        error if error.exhausted() => CniError::new(NO_ADDRESS, msg, error),
        IpamError::NoPool { .. }
        | IpamError::NodeMissing { .. }
        | IpamError::Selector { .. }
        | IpamError::NotInPool { .. }
        | IpamError::AlreadyAssigned { .. }
        | IpamError::ForeignBlock { .. } => CniError::new(NO_ADDRESS, msg, error),
        error if error.retryable() => CniError::try_again_later(msg, error),
        error => CniError::internal(msg, error),
    }
}

/// An ADD failed with `error`, and its addresses are not released, for `reason`.
pub fn addresses_held(error: CniError, reason: impl Display) -> CniError {
    error.with_detail(format_args!("its addresses are still held until DEL: {reason}"))
}

/// The datastore has no record of the node under whose name the request came.
pub fn unknown_node(node: &NodeName) -> CniError {
    let msg = format!("node {node} is not registered: the datastore has no {}", Key::node(node));
    let details = "compare the name with `calicoctl get nodes`; it is `nodename` of the network configuration, else what /var/lib/calico/nodename holds, else the host's name; \
        calico/node and `russet agent --calico` register a node when they start";
    CniError::invalid_config(msg, details)
}

/// A store operation failed; `error` becomes the details.
pub fn store(msg: &str, source: &StoreError, error: &impl ToString) -> CniError {
    match source {
        StoreError::Full { .. } => CniError::new(STORE_FULL, msg, error.to_string()),
        StoreError::Corrupt { .. } => CniError::new(CORRUPT_RECORD, msg, error.to_string()),
        // The operator wrote how the store is reached and which user it is used as.
        StoreError::Invalid { .. } => CniError::invalid_config(msg, error.to_string()),
        StoreError::Unsupported { .. } => CniError::internal(msg, error.to_string()),
        _ => CniError::try_again_later(msg, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use russet_cni_spec::code;

    use super::*;

    #[test]
    fn a_missing_certificate_file_is_a_configuration_error() {
        let reason = "read /etc/etcd/ca.pem: No such file or directory".to_owned();
        let error = StoreError::Invalid { operation: "use etcd at https://a:2379".to_owned(), reason };
        let reported = store("the datastore could not be opened", &error, &error);
        assert_eq!(reported.code, code::INVALID_CONFIG);
        assert!(reported.details.contains("/etc/etcd/ca.pem"), "{reported}");
    }
}
