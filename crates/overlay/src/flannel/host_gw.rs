//! The host-gw backend: a route to each peer's subnet by its address, which must be on our link (flannel.md section 6.3).
//! Called by `rules`; vxlan with DirectRouting has the same routes.

use std::net::IpAddr;

use super::rules::{Near, Way};
use crate::refusal::Reason;

/// The path to the peer at `public`.
pub(crate) fn way(underlay: u32, public: IpAddr, near: Near<'_>) -> Result<Way, Reason> {
    match near(public) {
        Some(ifindex) if ifindex == underlay => Ok(Way::Direct { ifindex, gateway: public }),
        _ => Err(Reason::OffLink(public)),
    }
}
