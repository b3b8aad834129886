//! Flannel's backends on the real kernel; `ip` and `bridge` verify its state (flannel.md sections 6
//! and 10).

mod cluster;
mod guards;
mod host_gw;
mod many_leases;
mod other;
mod vxlan;
