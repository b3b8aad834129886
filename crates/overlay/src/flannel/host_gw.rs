//! The host-gw backend: a route to each peer's subnet by its address, which must be on our link (flannel.md section 6.3).
//! Called by `rules`; vxlan with DirectRouting has the same routes.

use std::net::IpAddr;

use super::rules::{Near, PeerPath};
use crate::refusal::Reason;

/// The path to the peer at `public`.
pub(crate) fn path(underlay: u32, public: IpAddr, near: Near<'_>) -> Result<PeerPath, Reason> {
    match near(public) {
        Some(ifindex) if ifindex == underlay => Ok(PeerPath::Direct { ifindex, gateway: public }),
        _ => Err(Reason::OffLink(public)),
    }
}
