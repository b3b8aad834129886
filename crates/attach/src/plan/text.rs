//! Plans as text, for golden tests and debugging.

use std::fmt;

use russet_addr::Mac;
use russet_netlink::{BridgePort, Route};

use super::{Bridge, Op, PermanentNeighbour, Plan, PlannedRoute, Setting, Side, SourceRule, Step, Via, When};

// === impl Setting ===

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.path, self.value)?;
        match self.when {
            When::Required => Ok(()),
            When::Present => f.write_str(" if present"),
        }
    }
}

// === impl Op ===

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::LinkUp => f.write_str("link up"),
            Op::Join => f.write_str("port of the bridge"),
            Op::Port(BridgePort { hairpin, isolated }) => write!(f, "hairpin {hairpin}, isolated {isolated}"),
            Op::Address(address) => write!(f, "address {address}"),
            Op::Neighbour(PermanentNeighbour { address, mac }) => {
                write!(f, "neighbour {address} at {mac}, permanent")
            }
            Op::Rule(SourceRule { from, table }) => write!(f, "rule from {from} to table {table}"),
            Op::Route(PlannedRoute { net, via, metric, table, scope }) => {
                match via {
                    Via::Link => write!(f, "route {net} on the link")?,
                    Via::Gateway(gateway) => write!(f, "route {net} via {gateway}")?,
                }
                metric.map_or(Ok(()), |metric| write!(f, " metric {metric}"))?;
                scope.map_or(Ok(()), |scope| write!(f, " scope {scope:?}"))?;
                if *table == Route::MAIN { Ok(()) } else { write!(f, " table {table}") }
            }
        }
    }
}

// === impl Side ===

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Host => "node",
            Side::Pod => "pod",
        })
    }
}

// === impl Step ===

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Plan ===

impl Plan {
    /// One line for a step, as in errors and in the plan's text.
    fn describe(&self, f: &mut fmt::Formatter<'_>, step: &Step) -> fmt::Result {
        writeln!(f, "{step}")?;
        match step {
            Step::Bridge(Bridge { name, gateways, .. }) => {
                let gateways: Vec<String> = gateways.iter().map(ToString::to_string).collect();
                writeln!(f, "  node: {name} with {}", gateways.join(", "))
            }
            Step::CreateVeth => {
                let Self { host_name, ifname, mtu, pod_mac, owner, .. } = self;
                writeln!(f, "  node: {host_name} mac {} mtu {mtu} alias {owner}", Mac::GATEWAY)?;
                writeln!(f, "  pod: {ifname} mac {pod_mac} mtu {mtu}")
            }
            Step::Sysctls { settings, .. } => settings.iter().try_for_each(|s| writeln!(f, "  {s}")),
            Step::Batch { ops, .. } => ops.iter().try_for_each(|op| writeln!(f, "  {op}")),
            Step::Gate | Step::Settle => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, routes of protocol {}", self.owner, self.protocol)?;
        self.steps.iter().try_for_each(|step| self.describe(f, step))
    }
}
