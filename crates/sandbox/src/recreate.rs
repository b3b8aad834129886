//! Whether a pod needs another sandbox: kubelet's rules (cni-runtime.md section 3.2), for callers
//! that run pods without it.

use crate::{Sandbox, State};

/// The properties of one sandbox of the pod that matter for the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The attempt in its metadata.
    pub attempt: u32,
    /// The newest one counts.
    pub created_at: std::time::SystemTime,
    /// Whether it can be used.
    pub state: State,
    /// Whether it lives in the node's network.
    pub host_network: bool,
    /// Whether it has an address.
    pub has_address: bool,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recreation {
    /// The newest sandbox is good.
    Keep,
    /// The pod needs a new one.
    New {
        /// Its number.
        attempt: u32,
        /// The reason.
        why: Why,
    },
}

/// Why a pod needs a new sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    None,
    /// More than one is ready.
    SeveralReady,
    /// The newest one is not ready.
    NotReady,
    /// It is in the node's network and should not be, or the other way round.
    NetworkModeChanged,
    /// It has no address, as when its namespace was unmounted.
    NoAddress,
}

/// The decision for a pod with these sandboxes and this network mode.
pub fn recreation(sandboxes: &[Seen], host_network: bool) -> Recreation {
    let Some(newest) = sandboxes.iter().max_by_key(|seen| (seen.created_at, seen.attempt)) else {
        return Recreation::New { attempt: 0, why: Why::None };
    };
    let ready = sandboxes.iter().filter(|seen| seen.state == State::Ready).count();
    let why = if ready > 1 {
        Why::SeveralReady
    } else if newest.state != State::Ready {
        Why::NotReady
    } else if newest.host_network != host_network {
        Why::NetworkModeChanged
    } else if !host_network && !newest.has_address {
        Why::NoAddress
    } else {
        return Recreation::Keep;
    };
    Recreation::New { attempt: newest.attempt.saturating_add(1), why }
}

// === impl Seen ===

impl From<&Sandbox> for Seen {
    fn from(sandbox: &Sandbox) -> Self {
        Self {
            attempt: sandbox.config.metadata.attempt,
            created_at: sandbox.created_at,
            state: sandbox.state,
            host_network: sandbox.config.host_network,
            has_address: !sandbox.addresses.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn seen(attempt: u32) -> Seen {
        let created_at = UNIX_EPOCH + Duration::from_secs(u64::from(attempt) + 1);
        Seen { attempt, created_at, state: State::Ready, host_network: false, has_address: true }
    }

    fn stopped(attempt: u32) -> Seen {
        Seen { state: State::NotReady, ..seen(attempt) }
    }

    fn new(attempt: u32, why: Why) -> Recreation {
        Recreation::New { attempt, why }
    }

    // cni-runtime.md section 3.2: "Kubelet makes a new sandbox (attempt+1) when"

    #[test]
    fn a_pod_without_sandboxes_gets_its_first() {
        assert_eq!(recreation(&[], false), new(0, Why::None));
    }

    #[test]
    fn one_ready_sandbox_is_kept_whatever_died_before_it() {
        assert_eq!(recreation(&[seen(0)], false), Recreation::Keep);
        assert_eq!(recreation(&[seen(2), stopped(1), stopped(0)], false), Recreation::Keep);
    }

    #[test]
    fn two_ready_sandboxes_make_a_third() {
        assert_eq!(recreation(&[seen(0), seen(1)], false), new(2, Why::SeveralReady));
    }

    #[test]
    fn the_newest_decides_even_if_an_older_one_is_ready() {
        assert_eq!(recreation(&[stopped(1), seen(0)], false), new(2, Why::NotReady));
        assert_eq!(recreation(&[stopped(0)], true), new(1, Why::NotReady));
    }

    #[test]
    fn a_change_of_the_network_mode_makes_a_new_one() {
        assert_eq!(recreation(&[seen(0)], true), new(1, Why::NetworkModeChanged));
        let host = Seen { host_network: true, has_address: false, ..seen(3) };
        assert_eq!(recreation(std::slice::from_ref(&host), false), new(4, Why::NetworkModeChanged));
        assert_eq!(recreation(&[host], true), Recreation::Keep);
    }

    #[test]
    fn a_sandbox_that_lost_its_address_is_replaced() {
        let lost = Seen { has_address: false, ..seen(0) };
        assert_eq!(recreation(&[lost], false), new(1, Why::NoAddress));
    }

    #[test]
    fn the_last_attempt_does_not_become_the_first() {
        assert_eq!(recreation(&[stopped(u32::MAX)], false), new(u32::MAX, Why::NotReady));
    }
}
