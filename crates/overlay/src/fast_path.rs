//! The fast path: BPF programs that carry packets of known flows between pods, and to and from other
//! nodes, past netfilter and routes (docs/spec/dataplane.md section 4, docs/spec/policy.md section 4).
//!
//! The kernel's path stays complete beside it and decides about every flow: the programs carry only
//! what it let pass unchanged in the current *epoch* of flows, and leave to it whatever else comes. So
//! the fast path may be switched on and off at any moment, and no policy is evaluated twice.
//!
//! [`FlowEpoch::raise`] is called when something that was allowed may be allowed no longer, before and
//! after the change. [`FastPath::apply`] has the maps follow routes, neighbours and pods' interfaces; flows
//! are suspended from the kernel's notification until it has done so.
//!
//! Nothing is pinned: the programs end with the process, because nothing else raises the epoch.

mod content;
mod layout;
mod mode;
mod observe;
mod observer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use russet_linux::bpf::{
    Attachable, Attachment, BpfError, Found, Map, Object, Point, Program, Way, programs, remove_filters,
};
use russet_netlink::{Direction, NetlinkError, Socket};

pub use content::{Content, Hook, KernelPath, Paused, Role, content};
pub use layout::{Carried, EndedFlows, Endpoint, KnownFlow, Node, Traffic, Tunnel, Tuple, VxlanHeaders};
pub use mode::{FastPathMode, FastPathModeError};
pub use observer::{Counted, Epoch, Observer};

use layout::Setting;

/// The programs in the kernel, and where they are attached. Dropping it detaches them all.
#[derive(Debug)]
pub struct FastPath {
    maps: Maps,
    programs: BTreeMap<Role, Attachable>,
    way: Way,
    attachments: BTreeMap<Hook, Attachment>,
    content: Arc<Content>,
    /// The numbers of nodes in the map `nodes`.
    numbers: BTreeMap<Node, u32>,
    epoch: FlowEpoch,
    /// Where the counters of pods' interfaces are in the map `traffic`.
    places: BTreeMap<u32, u32>,
    /// A change failed, so that the maps may hold something else than `content`.
    is_unknown: bool,
}

/// The epoch of flows. Clones share it. Without a fast path it does nothing.
#[derive(Debug, Clone, Default)]
pub struct FlowEpoch(Arc<OnceLock<EpochMap>>);

#[derive(Debug)]
struct EpochMap {
    settings: Map,
    state: Mutex<EpochState>,
}

/// What was done to flows since the fast path was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochState {
    /// The number of the epoch, never 0, which the map has while flows are suspended. In each one flows are learnt anew.
    pub current: u32,
    pub is_suspended: bool,
    /// How often they were.
    pub suspensions: u64,
}

/// The programs' maps by their names.
#[derive(Debug)]
struct Maps(BTreeMap<String, Map>);

/// What [`FastPath::apply`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Links at whose hooks other programs are, which the fast path must not pass by.
    pub shared: BTreeSet<u32>,
    /// The first link where a program could not be attached, and why.
    pub failed: Option<String>,
    /// How many programs are left to be attached by the next call.
    pub unattached: usize,
    /// How many are attached.
    pub attached: usize,
}

const FIRST_EPOCH: u32 = 1;
/// So much of an epoch is in a packet.
const PACKET_EPOCH: u32 = 0xffff;
/// The number of a prefix that leads to no node.
const NO_NODE: u32 = 0;
/// The place of no interface: what is carried of one without a place is counted for the node only.
const NO_PLACE: u32 = 0;
/// The programs then leave every packet to the kernel's path.
const SUSPENDED: u32 = 0;

// === impl FastPath ===

impl FastPath {
    /// Loads the programs in the calling thread's network namespace; attaches none. `epoch` is the first
    /// one's of this process only.
    pub fn load(way: Way, epoch: &FlowEpoch) -> Result<Self, BpfError> {
        let objects = [
            (Role::Pod, programs::FAST_POD),
            (Role::NetkitPod, programs::FAST_POD_NETKIT),
            (Role::Uplink, programs::FAST_UPLINK),
            (Role::Learn, programs::FAST_LEARN),
        ];
        let objects: Vec<(Role, Object)> = objects
            .into_iter()
            .map(|(role, file)| Object::read(file).map(|object| (role, object)))
            .collect::<Result<_, _>>()?;
        let definitions = objects.first().map_or(&[][..], |(_, object)| object.maps());
        if objects.iter().any(|(_, object)| object.maps() != definitions) {
            return Err(BpfError::Object("the programs of the fast path have different maps"));
        }
        let created = definitions.iter().map(|it| Ok((it.name.clone(), Map::create(it)?)));
        let maps = Maps(created.collect::<Result<_, BpfError>>()?);
        // Both are in the order of names.
        let references: Vec<&Map> = maps.0.values().collect();
        let load = |(role, object): &(Role, Object)| {
            Ok((*role, Attachable::new(Program::load(object, &references)?, way)?))
        };
        let programs = objects.iter().map(load).collect::<Result<_, BpfError>>()?;
        epoch.start(maps.get("settings")?)?;
        Ok(Self {
            maps,
            programs,
            way,
            attachments: BTreeMap::new(),
            content: Arc::default(),
            numbers: BTreeMap::new(),
            epoch: epoch.clone(),
            places: BTreeMap::new(),
            is_unknown: false,
        })
    }

    /// How its programs are attached.
    pub const fn way(&self) -> Way {
        self.way
    }

    /// What the maps hold.
    pub const fn content(&self) -> &Arc<Content> {
        &self.content
    }

    /// Has the maps hold this, and at most so many more programs attached there: the kernel attaches each
    /// in a grace period (12 ms), in which no interface can be made or changed. After an error the kernel's path
    /// carries everything, until another call succeeds.
    pub fn apply(&mut self, wanted: Content, attached_max: usize) -> Result<Applied, BpfError> {
        let applied = self.try_apply(wanted, attached_max);
        if applied.is_err() {
            self.attachments.clear();
            self.is_unknown = true;
        }
        applied
    }

    fn try_apply(&mut self, mut wanted: Content, attached_max: usize) -> Result<Applied, BpfError> {
        wanted.hooks = wanted.hooks.into_iter().map(|hook| hook.by(self.way)).collect();
        if std::mem::take(&mut self.is_unknown) {
            self.empty()?;
        }
        let leads_elsewhere =
            wanted.prefixes != self.content.prefixes || wanted.tunnels != self.content.tunnels;
        if leads_elsewhere {
            self.epoch.raise()?;
            self.write_nodes(&wanted)?;
        }
        self.write_paused(&wanted)?;
        self.write_places(&wanted)?;
        self.write_endpoints(&wanted)?;
        if leads_elsewhere {
            self.epoch.raise()?;
        }
        self.content = Arc::new(wanted);
        self.attach(attached_max)
    }

    /// Removes everything from the maps of which some may not be known.
    fn empty(&mut self) -> Result<(), BpfError> {
        self.is_unknown = true;
        for map in [self.maps.get("endpoints")?, self.maps.get("prefixes")?] {
            for (key, _) in map.entries()? {
                map.delete(&key)?;
            }
        }
        for number in self.numbers.values() {
            self.maps.get("nodes")?.put(&number.to_ne_bytes(), &Node::none())?;
        }
        (self.content, self.numbers, self.is_unknown) = (Arc::default(), BTreeMap::new(), false);
        Ok(())
    }

    /// Reads what the programs have written, also when the fast path has ended.
    pub fn observer(&self) -> Result<Observer, BpfError> {
        Observer::new(|name| self.maps.get(name)?.try_clone())
    }

    fn write_nodes(&mut self, wanted: &Content) -> Result<(), BpfError> {
        let (numbers, freed) = numbered(&self.numbers, wanted.prefixes.values().flatten());
        let (nodes, prefixes) = (self.maps.get("nodes")?, self.maps.get("prefixes")?);
        for number in freed {
            nodes.put(&number.to_ne_bytes(), &Node::none())?;
        }
        for (node, number) in numbers.iter().filter(|(node, _)| !self.numbers.contains_key(node)) {
            nodes.put(&number.to_ne_bytes(), &node.encode())?;
        }
        self.numbers = numbers;
        for net in self.content.prefixes.keys().filter(|net| !wanted.prefixes.contains_key(net)) {
            prefixes.delete(&layout::prefix(*net))?;
        }
        for (net, node) in &wanted.prefixes {
            let number = node.and_then(|node| self.numbers.get(&node).copied()).unwrap_or(NO_NODE);
            prefixes.put(&layout::prefix(*net), &number.to_ne_bytes())?;
        }
        for (setting, value) in Tunnel::settings(&wanted.tunnels) {
            self.maps.get("settings")?.put(&setting.key(), &value)?;
        }
        Ok(())
    }

    /// Has the programs leave packets of some nodes to the kernel's path, and take those of others again.
    fn write_paused(&self, wanted: &Content) -> Result<(), BpfError> {
        let nodes = self.maps.get("nodes")?;
        for (node, number) in &self.numbers {
            let is_paused = wanted.paused.contains(node);
            if is_paused != self.content.paused.contains(node) {
                nodes.put(&number.to_ne_bytes(), &if is_paused { node.paused() } else { node.encode() })?;
            }
        }
        Ok(())
    }

    /// Interfaces that are there have places for their counters, also while nothing is carried of them, as far as there
    /// are places.
    fn write_places(&mut self, wanted: &Content) -> Result<(), BpfError> {
        let (places, traffic) = (self.maps.get("places")?, self.maps.get("traffic")?);
        for gone in self.places.keys().filter(|ifindex| !wanted.interfaces.contains_key(ifindex)) {
            places.delete(&gone.to_ne_bytes())?;
        }
        self.places.retain(|ifindex, _| wanted.interfaces.contains_key(ifindex));
        let used: BTreeSet<u32> = self.places.values().copied().collect();
        let mut free = (NO_PLACE + 1..traffic.definition().entries).filter(|place| !used.contains(place));
        for ifindex in wanted.interfaces.keys() {
            if self.places.contains_key(ifindex) {
                continue;
            }
            let Some(place) = free.next() else { return Ok(()) };
            traffic.put(&place.to_ne_bytes(), &vec![0; traffic.value_bytes()])?;
            places.put(&ifindex.to_ne_bytes(), &place.to_ne_bytes())?;
            self.places.insert(*ifindex, place);
        }
        Ok(())
    }

    /// A flow to an endpoint names the interface at which it was learnt, so that none reaches another pod.
    fn write_endpoints(&mut self, wanted: &Content) -> Result<(), BpfError> {
        let (known, map) = (&self.content.endpoints, self.maps.get("endpoints")?);
        for address in known.keys().filter(|address| !wanted.endpoints.contains_key(address)) {
            map.delete(&layout::address(*address))?;
        }
        for (address, endpoint) in &wanted.endpoints {
            if known.get(address) != Some(endpoint) {
                let place = self.places.get(&endpoint.ifindex).copied().unwrap_or(NO_PLACE);
                map.put(&layout::address(*address), &endpoint.encode(place))?;
            }
        }
        Ok(())
    }

    /// Attaches what is missing, also what another program has detached, and detaches what is not wanted.
    fn attach(&mut self, attached_max: usize) -> Result<Applied, BpfError> {
        let mut done = Applied::default();
        self.attachments.retain(|hook, _| self.content.hooks.contains(hook));
        let mut attached_now = 0;
        for hook in &self.content.hooks {
            let found = match self.attachments.get(hook) {
                Some(attachment) => attachment.look(),
                // There is nothing at a link that is gone.
                None => Found {
                    is_in_place: false,
                    is_shared: self.way.is_occupied(hook.ifindex, hook.point()).unwrap_or_default(),
                },
            };
            // What is where the uplink sends sees what the fast path sends, too.
            let uplink = Hook { role: Role::Uplink, ..*hook };
            let is_shared =
                found.is_shared && !(hook.role == Role::Learn && self.content.hooks.contains(&uplink));
            if found.is_in_place && !is_shared {
                continue;
            }
            self.attachments.remove(hook);
            // They would not see what the fast path carries past them. Without the program that learns, nothing
            // is carried to where it would be.
            if is_shared {
                done.shared.insert(hook.ifindex);
                continue;
            }
            if attached_now == attached_max {
                done.unattached += 1;
                continue;
            }
            attached_now += 1;
            let Some(program) = self.programs.get(&hook.role) else { continue };
            match program.attach(hook.ifindex, hook.point()) {
                Ok(attachment) => _ = self.attachments.insert(*hook, attachment),
                // The link may be gone already; then it is not wanted the next time.
                Err(error) => _ = done.failed.get_or_insert_with(|| error.to_string()),
            }
        }
        done.attached = self.attachments.len();
        Ok(done)
    }
}

/// Removes from links what the programs of an earlier process were attached by, where the kernel has no TCX. Returns how
/// much.
pub fn remove_leftovers(socket: &mut Socket) -> Result<usize, NetlinkError> {
    remove_filters(socket, &["fast_pod", "fast_uplink", "fast_learn"])
}

/// The numbers of these nodes, as they were or the lowest that are free, and those that are free from now on.
fn numbered<'a>(
    known: &BTreeMap<Node, u32>,
    nodes: impl Iterator<Item = &'a Node>,
) -> (BTreeMap<Node, u32>, Vec<u32>) {
    let wanted: BTreeSet<&Node> = nodes.collect();
    let mut numbers = known.clone();
    numbers.retain(|node, _| wanted.contains(node));
    let mut used: BTreeSet<u32> = numbers.values().copied().collect();
    let mut next = 1;
    for node in wanted {
        if numbers.contains_key(node) {
            continue;
        }
        while used.contains(&next) {
            next += 1;
        }
        used.insert(next);
        numbers.insert(*node, next);
    }
    let freed = known.values().copied().filter(|number| !used.contains(number)).collect();
    (numbers, freed)
}

// === impl Hook ===

impl Hook {
    fn point(&self) -> Point {
        match self.role {
            Role::Pod | Role::Uplink => Direction::Ingress.into(),
            Role::NetkitPod => Point::NetkitPeer,
            Role::Learn => Direction::Egress.into(),
        }
    }

    /// Where the kernel has filters of `clsact` only, a netkit pair has them as a veth has.
    fn by(self, way: Way) -> Self {
        match (way, self.role) {
            (Way::Clsact, Role::NetkitPod) => Self { role: Role::Pod, ..self },
            _ => self,
        }
    }
}

// === impl FlowEpoch ===

impl FlowEpoch {
    /// Has every flow pass the kernel's path again before the fast path carries it. A packet that is under
    /// way on the fast path still arrives.
    pub fn raise(&self) -> Result<(), BpfError> {
        self.change(|state| state.current = state.next())
    }

    /// Has all packets take the kernel's path, until the maps lead where it does again.
    pub fn suspend(&self) -> Result<(), BpfError> {
        self.change(|state| (state.is_suspended, state.suspensions) = (true, state.suspensions + 1))
    }

    /// Whether there is a fast path whose flows it ends.
    pub fn is_started(&self) -> bool {
        self.0.get().is_some()
    }

    /// All zero without a fast path.
    pub fn state(&self) -> EpochState {
        let lock = |epoch: &EpochMap| *epoch.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.get().map_or_else(EpochState::default, lock)
    }

    /// Ends a suspension, unless there was another one since there were so many. Flows are learnt again.
    pub fn resume(&self, suspensions: u64) -> Result<(), BpfError> {
        self.change(|state| {
            if state.is_suspended && state.suspensions == suspensions {
                (state.is_suspended, state.current) = (false, state.next());
            }
        })
    }

    /// Changes the state, and has the map hold what follows from it.
    fn change(&self, change: impl FnOnce(&mut EpochState)) -> Result<(), BpfError> {
        let Some(epoch) = self.0.get() else { return Ok(()) };
        let mut state = epoch.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.shown();
        change(&mut state);
        match state.shown() {
            shown if shown == before => Ok(()),
            shown => epoch.settings.put(&Setting::Epoch.key(), &shown.to_ne_bytes()),
        }
    }

    fn start(&self, settings: &Map) -> Result<(), BpfError> {
        let settings = settings.try_clone()?;
        settings.put(&Setting::Epoch.key(), &FIRST_EPOCH.to_ne_bytes())?;
        let state = EpochState { current: FIRST_EPOCH, is_suspended: false, suspensions: 0 };
        let started = self.0.set(EpochMap { settings, state: Mutex::new(state) });
        started.map_err(|_| BpfError::Object("the fast path is loaded already"))
    }
}

// === impl EpochState ===

impl EpochState {
    /// Packets on the kernel's path have the lower half, or 0 without a note.
    fn next(&self) -> u32 {
        let next = self.current.checked_add(1).unwrap_or(FIRST_EPOCH);
        if next & PACKET_EPOCH == 0 { next + 1 } else { next }
    }

    /// The value in the map.
    fn shown(&self) -> u32 {
        if self.is_suspended { SUSPENDED } else { self.current }
    }
}

// === impl Maps ===

impl Maps {
    fn get(&self, name: &str) -> Result<&Map, BpfError> {
        self.0.get(name).ok_or(BpfError::Object("a map of the fast path is missing"))
    }
}

#[cfg(test)]
mod tests;
