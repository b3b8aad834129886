//! What is seen of the fast path: for metrics, `russet flows`, `russet explain`, and the commands that capture.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use russet_linux::bpf::BpfError;
use russet_overlay::fast_path::{
    Applied, Carried, Content, Epoch, FastPathMode, KnownFlow, Node, Observer, Traffic,
};
use serde::{Deserialize, Serialize};

use super::pauses::Pauses;

/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct View(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// None before the programs are loaded.
    observer: OnceLock<Observer>,
    state: Mutex<State>,
    /// The flows that were carried a moment ago.
    carrying: Mutex<Option<(Instant, Arc<Carrying>)>>,
    pauses: Pauses,
}

#[derive(Debug, Default)]
struct State {
    mode: FastPathMode,
    /// Why nothing is carried, although it is wanted.
    off: Option<String>,
    content: Arc<Content>,
    /// Links at whose hooks other programs are.
    shared: BTreeSet<u32>,
    /// Programs are left to be attached.
    is_attaching: bool,
}

/// Which path packets take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    #[default]
    Kernel,
    /// The fast path, but for the few packets that always take the kernel's.
    Fast,
}

/// Packets, and their bytes from their IP headers on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    pub packets: u64,
    pub bytes: u64,
}

/// Flows that differ in nothing but the source's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ends {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// The destination's.
    pub port: u16,
}

/// What the fast path does with such flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    #[serde(flatten)]
    pub ends: Ends,
    pub path: Path,
    /// How many of them it carries.
    pub flows: u64,
    /// What it has carried to the destination, and back.
    pub there: Packets,
    pub back: Packets,
    /// Why it carries none.
    pub why: Option<String>,
}

/// The flows of the map, by their ends.
#[derive(Debug, Default)]
pub(crate) struct Carrying {
    there: HashMap<Ends, Sum>,
    back: HashMap<Ends, Sum>,
}

/// Of one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    /// Those that may be carried now.
    current: u64,
    carried: Carried,
}

/// One pod's interface, and what was carried of it.
pub(crate) type OfInterface = (String, Traffic);

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The flows are not read again before: with all places of the map taken, that is some 10 ms of work.
const CARRYING_AGE: Duration = Duration::from_secs(1);
const OFF: &str = "the fast path is off (--fast-path)";

// === impl View ===

impl View {
    pub(super) fn begin(&self, mode: FastPathMode, observer: Option<Observer>) {
        self.state().mode = mode;
        if let Some(observer) = observer {
            // It is loaded once.
            let _ = self.0.observer.set(observer);
        }
    }

    pub(super) fn show(&self, content: &Arc<Content>, applied: &Applied) {
        let mut state = self.state();
        (state.off, state.content) = (None, Arc::clone(content));
        (state.shared, state.is_attaching) = (applied.shared.clone(), applied.unattached > 0);
    }

    pub(super) fn show_off(&self, reason: &str) {
        self.state().off = Some(reason.to_owned());
    }

    pub(super) fn pauses(&self) -> &Pauses {
        &self.0.pauses
    }

    /// What the programs have written; none where they are not loaded.
    pub(crate) fn observer(&self) -> Option<&Observer> {
        self.0.observer.get()
    }

    pub(crate) fn mode(&self) -> FastPathMode {
        self.state().mode
    }

    /// Why nothing is carried; none while the fast path is on.
    pub(crate) fn off(&self) -> Option<String> {
        let state = self.state();
        match state.mode {
            FastPathMode::Off => Some(OFF.to_owned()),
            _ => state.off.as_ref().map(|reason| format!("the fast path is off: {reason}")),
        }
    }

    /// Whether a link is the host end of a pod.
    pub(crate) fn pods(&self) -> BTreeSet<u32> {
        self.state().content.interfaces.keys().copied().collect()
    }

    /// What was carried of each pod's interface, by the name of its host end.
    pub(crate) fn traffic(&self) -> Vec<OfInterface> {
        let Some(observer) = self.observer() else { return Vec::new() };
        let content = Arc::clone(&self.state().content);
        let of = |(ifindex, name): (&u32, &String)| Some((name.clone(), observer.traffic(*ifindex).ok()??));
        content.interfaces.iter().filter_map(of).collect()
    }

    /// What is carried, as it was at most a moment ago. Blocks for some milliseconds.
    pub(crate) fn carrying(&self) -> Arc<Carrying> {
        let mut kept = self.0.carrying.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((at, carrying)) if at.elapsed() < CARRYING_AGE => Arc::clone(carrying),
            _ => {
                let carrying = Arc::new(self.look().unwrap_or_default());
                *kept = Some((Instant::now(), Arc::clone(&carrying)));
                carrying
            }
        }
    }

    /// What the fast path does with flows now. Blocks for some milliseconds.
    pub(crate) fn taken(&self, asked: &[Ends]) -> Vec<Taken> {
        let carrying = self.look().unwrap_or_default();
        let taken = |ends: &Ends| {
            let mut taken = self.of(&carrying, *ends);
            if taken.path == Path::Kernel && taken.why.is_none() {
                taken.why = Some(self.off().unwrap_or_else(|| self.state().why(ends)));
            }
            taken
        };
        asked.iter().map(taken).collect()
    }

    /// What is carried of flows that were read. The flows of what is left to the kernel's path for a while stay known.
    pub(crate) fn of(&self, carrying: &Carrying, ends: Ends) -> Taken {
        let taken = carrying.of(ends);
        match self.state().left_to_kernel(&ends) {
            Some(why) if taken.path == Path::Fast => {
                Taken { path: Path::Kernel, flows: 0, why: Some(why), ..taken }
            }
            _ => taken,
        }
    }

    fn look(&self) -> Option<Carrying> {
        let observer = self.observer()?;
        let read = || -> Result<Carrying, BpfError> {
            let is_off = self.off().is_some();
            Ok(Carrying::new(observer.epoch()?.filter(|_| !is_off), &observer.flows()?))
        };
        read().inspect_err(|error| tracing::debug!(%error, "flows of the fast path are not read")).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    /// The node that has an address, by the routes that the fast path follows.
    fn node_of(&self, address: IpAddr) -> Option<Node> {
        let nets = self.content.prefixes.iter().filter(|(net, _)| net.contains(&address));
        nets.max_by_key(|(net, _)| net.prefix_len()).and_then(|(_, node)| *node)
    }

    /// Why packets between two ends take the kernel's path, also of flows that are known.
    fn left_to_kernel(&self, ends: &Ends) -> Option<String> {
        let content = &self.content;
        if let Some(why) = content.left_out.get("all") {
            return Some((*why).to_owned());
        }
        [ends.source, ends.destination].into_iter().find_map(|address| {
            if let Some(why) = content.excluded.get(&address) {
                return Some(format!("{address}: {why}"));
            }
            let is_paused = !content.paused.is_empty()
                && self.node_of(address).is_some_and(|node| content.paused.contains(&node));
            is_paused.then(|| format!("a capture runs, which shall see the packets of the node of {address}"))
        })
    }

    /// Why no such flow is carried, as far as it is known without a look at the packets.
    fn why(&self, ends: &Ends) -> String {
        let content = &self.content;
        if !matches!(ends.protocol, TCP | UDP) {
            return "it carries TCP and UDP only".to_owned();
        }
        if let Some(why) = self.left_to_kernel(ends) {
            return why;
        }
        let all = [ends.source, ends.destination];
        let here: BTreeMap<IpAddr, u32> =
            all.iter().filter_map(|it| Some((*it, content.endpoints.get(it)?.ifindex))).collect();
        if here.is_empty() {
            return "neither end is a pod of this node that it knows".to_owned();
        }
        let mut away = all.iter().filter(|it| !here.contains_key(it));
        if let Some(address) = away.find(|address| self.node_of(**address).is_none()) {
            return format!("no route of Russet's leads to {address}, or that of another program does");
        }
        if here.values().any(|ifindex| self.shared.contains(ifindex)) {
            return "a BPF program of another owner is at the pod's interface".to_owned();
        }
        let has_program = |ifindex: &u32| {
            content.hooks.iter().any(|hook| hook.ifindex == *ifindex && hook.role.is_from_pod())
        };
        if self.is_attaching || !here.values().all(has_program) {
            return "its programs are not at all interfaces yet: that takes a second after the last change of a pod's interface".to_owned();
        }
        "it knows no such flow: none has sent packets since the last change of rules, or only the first ones, or the kernel changes its addresses or ports, as for a Service".to_owned()
    }
}

// === impl Carrying ===

impl Carrying {
    fn new(epoch: Option<Epoch>, flows: &[KnownFlow]) -> Self {
        let mut carrying = Self::default();
        for flow in flows {
            carrying.add(epoch.is_some_and(|epoch| epoch.has(flow)), flow);
        }
        carrying
    }

    fn add(&mut self, is_current: bool, flow: &KnownFlow) {
        let tuple = &flow.tuple;
        let (source, destination, protocol) = (tuple.from, tuple.to, tuple.protocol);
        let there = Ends { source, destination, protocol, port: tuple.to_port };
        let back = Ends { source: destination, destination: source, protocol, port: tuple.from_port };
        for sum in [self.there.entry(there).or_default(), self.back.entry(back).or_default()] {
            sum.current += u64::from(is_current);
            sum.carried = sum.carried.plus(flow.carried);
        }
    }

    /// What is carried of such flows.
    fn of(&self, ends: Ends) -> Taken {
        let find = |sums: &HashMap<Ends, Sum>| sums.get(&ends).copied().unwrap_or_default();
        let (there, back) = (find(&self.there), find(&self.back));
        // Of TCP both directions have to be known.
        let flows = if ends.protocol == TCP { there.current.min(back.current) } else { there.current };
        let path = if flows > 0 { Path::Fast } else { Path::Kernel };
        let (there, back) = (there.carried.into(), back.carried.into());
        Taken { ends, path, flows, there, back, why: None }
    }
}

// === impl Packets ===

impl From<Carried> for Packets {
    fn from(Carried { packets, bytes }: Carried) -> Self {
        Self { packets, bytes }
    }
}

impl Packets {
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { packets: self.packets.saturating_add(other.packets), bytes }
    }
}

#[cfg(test)]
mod tests {
    use russet_addr::Mac;
    use russet_overlay::fast_path::{Endpoint, Hook, Paused, Role, Tuple};

    use super::*;

    const POD: &str = "10.244.1.2";
    const AWAY: &str = "10.244.2.2";

    fn ends(source: &str, destination: &str, protocol: u8) -> Ends {
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        Ends { source, destination, protocol, port: 80 }
    }

    fn content() -> Content {
        let mut content = Content::default();
        let endpoint = Endpoint { ifindex: 7, mtu_bytes: 1450, pod_mac: Mac([2; 6]), host_mac: Mac([4; 6]) };
        content.endpoints.insert(POD.parse().unwrap(), endpoint);
        content.hooks.insert(Hook { ifindex: 7, role: Role::Pod });
        content.interfaces.insert(7, "russ7".to_owned());
        let next_hop = "192.0.2.2".parse().unwrap();
        let node = Node { via_ifindex: 2, mtu_bytes: 1500, out_ifindex: 2, next_hop, vxlan: None };
        content.prefixes.insert("10.244.2.0/26".parse().unwrap(), Some(node));
        content.prefixes.insert("10.244.2.9/32".parse().unwrap(), None);
        content
    }

    #[test]
    fn why_a_flow_is_not_carried_is_said_by_what_keeps_it_from_that() {
        let view = View::default();
        let why = |view: &View, ends: Ends| view.taken(&[ends]).remove(0).why.unwrap();
        assert_eq!(why(&view, ends(POD, AWAY, TCP)), OFF);
        view.begin(FastPathMode::Auto, None);
        view.show_off("no TCX");
        assert_eq!(why(&view, ends(POD, AWAY, TCP)), "the fast path is off: no TCX");
        view.show(&Arc::new(content()), &Applied::default());
        assert!(why(&view, ends(POD, AWAY, TCP)).starts_with("it knows no such flow"));
        for (ends, wanted) in [
            (ends(POD, AWAY, 1), "TCP and UDP only"),
            (ends("10.9.0.1", AWAY, UDP), "neither end is a pod of this node"),
            (ends(POD, "10.244.2.9", UDP), "no route of Russet's leads to 10.244.2.9"),
            (ends("203.0.113.1", POD, UDP), "no route of Russet's leads to 203.0.113.1"),
        ] {
            assert!(why(&view, ends).contains(wanted), "{}", why(&view, ends));
        }
        view.show(&Arc::new(content()), &Applied { shared: [7].into(), ..Applied::default() });
        assert!(why(&view, ends(POD, AWAY, TCP)).contains("of another owner"));
        view.show(&Arc::new(content()), &Applied { unattached: 1, ..Applied::default() });
        assert!(why(&view, ends(POD, AWAY, TCP)).contains("not at all interfaces yet"));
        let mut paused = content();
        paused.pause(&Paused { interfaces: [7].into(), ..Paused::default() });
        view.show(&Arc::new(paused), &Applied::default());
        assert!(why(&view, ends(POD, AWAY, TCP)).starts_with("10.244.1.2: a capture runs"));
        // A flow that is known is not carried then, either.
        let tuple = Tuple {
            from: POD.parse().unwrap(),
            to: AWAY.parse().unwrap(),
            from_port: 1000,
            to_port: 80,
            protocol: UDP,
        };
        let flow = KnownFlow { tuple, ifindex: 7, out_ifindex: 2, epoch: 3, carried: Carried::default() };
        let mut carrying = Carrying::default();
        carrying.add(true, &flow);
        let taken = view.of(&carrying, ends(POD, AWAY, UDP));
        assert_eq!((taken.path, taken.flows), (Path::Kernel, 0));
        view.show(&Arc::new(content()), &Applied::default());
        let taken = view.of(&carrying, ends(POD, AWAY, UDP));
        assert_eq!((taken.path, taken.flows, taken.why), (Path::Fast, 1, None));
        let mut away = content();
        away.paused = away.prefixes.values().flatten().copied().collect();
        view.show(&Arc::new(away), &Applied::default());
        assert!(view.of(&carrying, ends(POD, AWAY, UDP)).why.unwrap().contains("of the node of 10.244.2.2"));
        // Of TCP both directions have to be known.
        let tuple = Tuple { protocol: TCP, ..tuple };
        carrying.add(true, &KnownFlow { tuple, ..flow });
        assert_eq!(carrying.of(ends(POD, AWAY, TCP)).flows, 0);
        carrying.add(true, &KnownFlow { tuple: tuple.reversed(), ..flow });
        assert_eq!(carrying.of(ends(POD, AWAY, TCP)).flows, 1);
        let mut ruled = content();
        ruled.left_out.insert("all".to_owned(), "there are rules");
        view.show(&Arc::new(ruled), &Applied::default());
        assert_eq!(why(&view, ends(POD, AWAY, TCP)), "there are rules");
    }
}
