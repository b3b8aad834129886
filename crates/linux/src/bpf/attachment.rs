//! Attaches programs by what the kernel has: by TCX (and at netkit pairs), or as filters of `clsact` before Linux 6.6.
//!
//! A program's link ends with the process that made it. A filter stays when the process is killed. So the program of a filter
//! does nothing but jump into a table of programs, which the kernel empties once no process has it open any more; from
//! then on packets take the kernel's path. [`remove_filters`] removes what an earlier process has left.
//!
//! Adding or removing a `clsact` stops the queue of a link that is up for an RCU grace period, in which the kernel drops
//! what the link is to send (`dev_deactivate`, called in net/sched/sch_api.c). So it is added once for each link and
//! stays, with or without filters; only [`remove_filter`] removes it with the last one.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use russet_netlink::{Batch, BatchError, BpfFilter, Direction, Filter, NetlinkError, Qdisc, Socket};

use super::{BpfError, Map, Object, Point, Program, ProgramLink, attached, programs};

/// How programs are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Tcx,
    Clsact,
}

/// A program that can be attached to links.
#[derive(Debug)]
pub struct Attachable {
    program: Program,
    /// What is attached in its place where the kernel has no TCX.
    jump: Option<Jump>,
}

/// A program that calls another one, as long as the table is open.
#[derive(Debug)]
struct Jump {
    program: Program,
    /// Never read: it is open.
    _table: Map,
}

/// An attached program. Dropping it, in the network namespace of the link, detaches the program.
#[derive(Debug)]
pub struct Attachment {
    ifindex: u32,
    by: By,
}

#[derive(Debug)]
enum By {
    Link(ProgramLink, Point),
    Clsact { direction: Direction, filter: String },
}

/// What is at a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// The program is there that was attached.
    pub is_in_place: bool,
    /// Programs or filters of others are there.
    pub is_shared: bool,
}

/// The environment variable by which a kernel is treated as one without TCX.
const TCX: &str = "RUSSET_TCX";
/// The loopback of every network namespace, which need not be up to be asked.
const LOOPBACK: u32 = 1;
/// The index that a program's link has once its network link is gone.
const GONE: u32 = 0;
/// The names of filters begin with it; the program's follows.
const FILTER_PREFIX: &str = "russet-bpf-";
/// Behind what other programs add, which choose low numbers or have the kernel choose from 0xc000 downwards.
const PRIORITY: u16 = 0xd000;
const CLSACT: &str = "clsact";

// === impl Way ===

impl Way {
    /// TCX where the kernel has it, unless `RUSSET_TCX=off` is in the environment.
    pub fn probe() -> Self {
        let is_wanted = std::env::var_os(TCX).is_none_or(|value| value != "off");
        if is_wanted && attached(LOOPBACK, Direction::Ingress).is_ok() { Self::Tcx } else { Self::Clsact }
    }

    /// Whether programs or filters of others are at a hook at which this process has none.
    pub fn is_occupied(self, ifindex: u32, point: impl Into<Point>) -> Result<bool, BpfError> {
        match (self, point.into()) {
            (Self::Clsact, Point::Tcx(direction)) => {
                filters(ifindex, direction).map(|found| has_others(&found, ifindex, direction))
            }
            (_, point) => have_others(ifindex, point, None),
        }
    }
}

// === impl Attachable ===

impl Attachable {
    pub fn new(program: Program, way: Way) -> Result<Self, BpfError> {
        let jump = match way {
            Way::Tcx => None,
            Way::Clsact => Some(Jump::new(&program)?),
        };
        Ok(Self { program, jump })
    }

    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Attaches it behind what is there, in the calling thread's network namespace. A filter that an earlier process has
    /// left is replaced.
    pub fn attach(&self, ifindex: u32, point: impl Into<Point>) -> Result<Attachment, BpfError> {
        let by = match (&self.jump, point.into()) {
            (Some(jump), Point::Tcx(direction)) => {
                let filter = format!("{FILTER_PREFIX}{}", self.program.name());
                let added = add_filter(&jump.program, ifindex, direction, &filter);
                added.map_err(failed(format!("attach BPF program to link {ifindex}")))?;
                By::Clsact { direction, filter }
            }
            (_, point) => By::Link(ProgramLink::attach(&self.program, ifindex, point)?, point),
        };
        Ok(Attachment { ifindex, by })
    }
}

// === impl LinkFilter ===

impl LinkFilter {
    fn name(&self) -> String {
        format!("{FILTER_PREFIX}{}", self.program)
    }
}

// === impl Jump ===

impl Jump {
    fn new(target: &Program) -> Result<Self, BpfError> {
        let object = Object::read(programs::JUMP)?;
        let [definition] = object.maps() else { return Err(BpfError::Object("a jump has not one table")) };
        let table = Map::create(definition)?;
        table.put(&0_u32.to_ne_bytes(), &target.as_fd().as_raw_fd().to_ne_bytes())?;
        Ok(Self { program: Program::load(&object, &[&table])?, _table: table })
    }
}

// === impl Attachment ===

impl Attachment {
    /// What is at its hook now. Nothing is at a link that is gone.
    pub fn look(&self) -> Found {
        self.try_look().unwrap_or_default()
    }

    fn try_look(&self) -> Result<Found, BpfError> {
        match &self.by {
            By::Link(link, point) => {
                let (own, ifindex) = link.info()?;
                let is_shared = have_others(self.ifindex, *point, Some(own.link))?;
                let is_in_place = match point {
                    Point::Tcx(_) => ifindex == self.ifindex,
                    // It is that of the other end.
                    Point::NetkitPeer => ifindex != GONE,
                };
                Ok(Found { is_in_place, is_shared })
            }
            By::Clsact { direction, filter } => {
                let found = filters(self.ifindex, *direction)?;
                let is_in_place = found.iter().filter_map(own).any(|found| found.name == *filter);
                Ok(Found { is_in_place, is_shared: has_others(&found, self.ifindex, *direction) })
            }
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let By::Clsact { filter, .. } = &self.by {
            // The link may be gone, and with it the filter. After another failure the filter stays, and jumps nowhere once
            // the process has ended.
            let _ = Socket::route().and_then(|mut socket| remove(&mut socket, self.ifindex, filter, false));
        }
    }
}

/// Whether programs are at a point that have another link than this one. What a program passes by that is where the pod
/// sends counts as well: programs where the primary end of the pair receives.
fn have_others(ifindex: u32, point: Point, own: Option<u32>) -> Result<bool, BpfError> {
    let mut found = attached(ifindex, point)?;
    if point == Point::NetkitPeer {
        found.extend(attached(ifindex, Direction::Ingress)?);
    }
    Ok(found.iter().any(|it| Some(it.link) != own))
}

/// A filter that jumps, of this or another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFilter {
    pub ifindex: u32,
    /// The name of the program that it was attached for.
    pub program: String,
}

/// The filters that jump, at all links of the calling thread's network namespace.
pub fn own_filters(socket: &mut Socket) -> Result<Vec<LinkFilter>, NetlinkError> {
    let mut all = Vec::new();
    for Qdisc { ifindex, .. } in socket.qdiscs()?.into_iter().filter(|qdisc| qdisc.kind == CLSACT) {
        let found = both(socket, ifindex)?;
        let names = found.iter().filter_map(|(_, filter)| own(filter)?.name.strip_prefix(FILTER_PREFIX));
        all.extend(names.map(|name| LinkFilter { ifindex, program: name.to_owned() }));
    }
    Ok(all)
}

/// Removes the filters of programs with these names that an earlier process has left, and no `clsact`. Returns how many.
pub fn remove_filters(socket: &mut Socket, programs: &[&str]) -> Result<usize, NetlinkError> {
    let all = own_filters(socket)?;
    let meant = all.iter().filter(|filter| programs.contains(&filter.program.as_str()));
    meant.map(|filter| remove(socket, filter.ifindex, &filter.name(), false)).sum()
}

/// Removes a filter, which may be gone, and the `clsact` of its link with the last one. Returns how many were there.
pub fn remove_filter(socket: &mut Socket, filter: &LinkFilter) -> Result<usize, NetlinkError> {
    remove(socket, filter.ifindex, &filter.name(), true)
}

/// Leaves out each `clsact` that has no filters of others, where programs are attached by one: it does nothing to packets.
pub fn without_own_clsact(
    way: Way,
    socket: &mut Socket,
    qdiscs: &mut Vec<Qdisc>,
) -> Result<(), NetlinkError> {
    if way == Way::Tcx {
        return Ok(());
    }
    let mut own_links = Vec::new();
    for qdisc in qdiscs.iter().filter(|qdisc| qdisc.kind == CLSACT) {
        if both(socket, qdisc.ifindex)?.iter().all(|(_, filter)| own(filter).is_some()) {
            own_links.push(qdisc.ifindex);
        }
    }
    qdiscs.retain(|qdisc| qdisc.kind != CLSACT || !own_links.contains(&qdisc.ifindex));
    Ok(())
}

fn filters(ifindex: u32, direction: Direction) -> Result<Vec<Filter>, BpfError> {
    let listed = Socket::route().and_then(|mut socket| socket.filters(ifindex, direction));
    listed.map_err(failed(format!("list the filters of link {ifindex}")))
}

fn both(socket: &mut Socket, ifindex: u32) -> Result<Vec<(Direction, Filter)>, NetlinkError> {
    let mut found = Vec::new();
    for direction in [Direction::Ingress, Direction::Egress] {
        found.extend(socket.filters(ifindex, direction)?.into_iter().map(|filter| (direction, filter)));
    }
    Ok(found)
}

/// A filter that jumps, of this or an earlier process.
fn own(filter: &Filter) -> Option<&BpfFilter> {
    match filter {
        Filter::Bpf(bpf) if bpf.direct && bpf.name.starts_with(FILTER_PREFIX) => Some(bpf),
        Filter::Bpf(_) | Filter::Other(_) => None,
    }
}

/// Whether others have filters at a hook, or programs by TCX, which this kernel may have all the same.
fn has_others(found: &[Filter], ifindex: u32, direction: Direction) -> bool {
    let is_in_tcx = || attached(ifindex, direction).is_ok_and(|programs| !programs.is_empty());
    found.iter().any(|filter| own(filter).is_none()) || is_in_tcx()
}

fn add_filter(jump: &Program, ifindex: u32, direction: Direction, name: &str) -> Result<(), NetlinkError> {
    let mut socket = Socket::route()?;
    let refused = |error: BatchError| error.error;
    match socket.execute(Batch::new().add_clsact(ifindex)) {
        Err(error) if !error.is_exists() => return Err(error.error),
        _ => {}
    }
    let mut batch = Batch::new();
    for filter in socket.filters(ifindex, direction)?.iter().filter_map(own).filter(|it| it.name == name) {
        batch.delete_bpf(ifindex, direction, filter);
    }
    batch.add_bpf(ifindex, direction, jump.as_fd(), name, PRIORITY);
    socket.execute(&batch).map_err(refused)
}

fn remove(socket: &mut Socket, ifindex: u32, name: &str, with_clsact: bool) -> Result<usize, NetlinkError> {
    let found = both(socket, ifindex)?;
    let meant: Vec<(Direction, &BpfFilter)> = found
        .iter()
        .filter_map(|(direction, filter)| Some((*direction, own(filter)?)))
        .filter(|(_, filter)| filter.name == name)
        .collect();
    let mut batch = Batch::new();
    for (direction, filter) in &meant {
        batch.delete_bpf(ifindex, *direction, filter);
    }
    if with_clsact && !meant.is_empty() && meant.len() == found.len() {
        batch.delete_clsact(ifindex);
    }
    match socket.execute(&batch) {
        Err(error) if !error.is_not_found() => Err(error.error),
        _ => Ok(meant.len()),
    }
}

fn failed(operation: String) -> impl FnOnce(NetlinkError) -> BpfError {
    move |error| {
        let source =
            error.errno().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error);
        BpfError::Kernel { operation, source }
    }
}
