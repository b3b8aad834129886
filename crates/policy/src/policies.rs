//! Decisions about single connections: table `inet russet-decisions`.
//!
//! The table exists only where something decides ([`Policies`] is not opened otherwise), apart from
//! `inet russet-policy`: processes without an agent repair that one without knowing any decision, and
//! a packet passes only if both tables let it. Its rules never change with policies; only elements
//! of maps do, and each change is one transaction, guarded by the generation of the ruleset, or a few
//! where a packet that reads a part of the maps before a commit and the others behind it would pass
//! though both states deny it ([`content::phases`]).
//!
//! The caller computes the decisions ([`russet_verdict`]).

mod content;
mod ends;
mod epoch;
mod lists;
mod log;
mod skeleton;
pub(crate) mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_nft::{CommitError, Conntrack, Element, Nft, Transaction};
use russet_verdict::table::Delta;

use crate::error::PolicyError;
use crate::packets::wait_until_judged;
use crate::ruleset;
use crate::table_spec::{Fault, elements, replace};
use crate::verdicts::next_generation;
use content::{Changes, Steps};
use epoch::Half;
use lists::Lists;
use skeleton::{DECISIONS_TABLE, Place, Shape};

pub use content::Decisions;
pub use epoch::{Epoch, MarkBits};
pub use log::{DeniedPackets, LoggedFlow};
pub(crate) use skeleton::{INPUT_PRIORITY_MAX, limited_log, of};
pub use skeleton::{LOG_GROUP, LOGGED_BURST, LOGGED_PER_S, table as decisions_table};

/// The decisions of one network namespace, in the kernel.
#[derive(Debug)]
pub struct Policies {
    nft: Nft,
    settings: Settings,
    priority_by_tos: bool,
    /// Of the chains that the kernel calls.
    priority: i32,
    /// What the kernel holds.
    content: Decisions,
    /// The lists of source ports in it.
    lists: Lists,
    /// None before there is a table.
    epoch: Option<Epoch>,
    /// The generation of the ruleset at which the table was complete.
    complete_at: Option<u32>,
    /// Whether the kernel may hold something else than `content`, because a change failed.
    is_doubtful: bool,
    /// When the epoch was advanced last.
    advanced: Option<Instant>,
    /// Whether connections must be judged again that were judged in this epoch.
    is_due: bool,
    /// Whether new connections that pass are logged.
    samples: bool,
    /// The host ends of Calico's plugins that carry packets, by index; none while all do.
    ends: Option<BTreeSet<u32>>,
    observer: Option<EpochObserver>,
}

/// What is called right before and right after each change by which established connections are judged
/// again.
pub struct EpochObserver(Box<dyn Fn() + Send>);

/// What the node is configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Where the epoch is in connections' marks.
    pub bits: MarkBits,
    /// Whether established connections are judged again when a change forbids something; else they
    /// continue, as with Calico.
    pub rechecks: bool,
    /// The most elements in a transaction; larger changes are several.
    pub elements_max: usize,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyReport {
    /// A missing or different part of table, chains, sets or rules; none if there was none.
    pub structure: Option<String>,
    /// The elements that were added and removed.
    pub elements: usize,
    /// Whether all connections are judged again.
    pub advanced: bool,
}

/// Changes of the kernel's state that belong together.
#[derive(Debug, Default)]
struct Work {
    /// The table itself, and the sets that do not depend on decisions.
    structure: Transaction,
    steps: Steps,
    /// Addresses that are held until everything is written, if that takes several transactions.
    lock: BTreeSet<IpAddr>,
    /// The epoch in force afterwards, if it changes.
    epoch: Option<Epoch>,
}

/// The shortest time between two epochs: a storm of changes does not judge every packet.
const EPOCH_INTERVAL: Duration = Duration::from_millis(100);
/// Larger transactions do not fit into socket buffers, and other users of nf_tables wait for them.
const ELEMENTS_MAX: usize = 60_000;
/// Attempts at a change that other programs' commits overtake.
const MAX_TRIES: usize = 5;

type Result<T, E = PolicyError> = std::result::Result<T, E>;

// === impl Policies ===

impl Policies {
    /// Opens nf_tables in the calling thread's network namespace and reads what it holds; changes
    /// nothing.
    pub fn open(settings: Settings) -> Result<Self> {
        let mut policies = Self {
            nft: Nft::open()?,
            settings,
            priority_by_tos: crate::priority::is_by_tos(),
            priority: skeleton::CHAIN_PRIORITIES.start,
            content: Decisions::default(),
            lists: Lists::default(),
            epoch: None,
            complete_at: None,
            is_doubtful: false,
            advanced: None,
            is_due: false,
            samples: false,
            ends: None,
            observer: None,
        };
        policies.read()?;
        Ok(policies)
    }

    /// Has later changes be observed.
    pub fn observe(&mut self, observer: EpochObserver) {
        self.observer = Some(observer);
    }

    /// What the kernel holds, as far as known: other programs may have changed it since.
    pub const fn current(&self) -> &Decisions {
        &self.content
    }

    /// Decisions that are denied because they depend on more ranges of source ports than the kernel
    /// can hold.
    pub fn denied_by_limit(&self) -> usize {
        self.lists.denied()
    }

    /// The epoch in force; none without a table.
    pub const fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// What the table lacks so that the decisions that it holds are in force: chains, rules, or
    /// elements that follow from others. Changes nothing.
    pub fn faults(&mut self) -> Result<PolicyReport> {
        match self.epoch {
            Some(_) => Ok(self.difference()?.1),
            None => Ok(PolicyReport::default()),
        }
    }

    /// Our netlink port in the messages of a monitor of nf_tables.
    pub fn port(&self) -> std::io::Result<u32> {
        self.nft.port()
    }

    /// Applies a delta. `decided` are addresses that were held ([`hold`](Self::hold)) and for which
    /// the delta, or what was applied before, says everything. After a failure the kernel holds the first
    /// phases of the change, in which nothing passes that it denied before and denies afterwards, or, if
    /// a phase needs many transactions, it denies what the delta concerns; the next call compares
    /// everything.
    pub fn apply(&mut self, delta: &Delta, decided: &BTreeSet<IpAddr>, now: Instant) -> Result<PolicyReport> {
        let elements_max = self.settings.elements_max;
        let steps = self.content.steps(delta, decided, &mut self.lists, elements_max);
        // A packet whose processor stood still for longer than one of several phases may have passed by two of them.
        let is_divided = steps.complete.len() > 0 || steps.phases.len() > 1;
        self.is_due |= (delta.tightens || is_divided) && self.settings.rechecks;
        let epoch = self.epoch_due(now);
        let (elements, advanced) = (steps.len(), epoch.is_some());
        let mut lock = BTreeSet::new();
        if steps.is_large(elements_max) {
            lock = self.content.touched(delta);
            lock.retain(|address| !self.content.held.contains(address));
        }
        let work = Work { steps, lock, epoch, ..Work::default() };
        self.change(work, now, |content| content.apply(delta, decided))?;
        Ok(PolicyReport { structure: None, elements, advanced })
    }

    /// Denies everything to and from these addresses, except that the node itself reaches them, until
    /// [`apply`](Self::apply) says that they are decided: for endpoints that are new.
    pub fn hold(&mut self, addresses: &BTreeSet<IpAddr>, now: Instant) -> Result<PolicyReport> {
        let steps = Steps { phases: vec![self.content.holding(addresses)], ..Steps::default() };
        let elements = steps.len();
        self.change(Work { steps, ..Work::default() }, now, |content| content.held.extend(addresses))?;
        Ok(PolicyReport { elements, ..PolicyReport::default() })
    }

    /// Does the work that makes the kernel hold what `apply` makes of the content. If the kernel holds
    /// something else than was known, everything is compared.
    fn change(&mut self, work: Work, now: Instant, apply: impl FnOnce(&mut Decisions)) -> Result<()> {
        if !self.is_doubtful {
            let is_nothing = work.steps.len() == 0 && work.epoch.is_none();
            match if is_nothing { Ok(()) } else { self.perform(work, now) } {
                Ok(()) => {
                    apply(&mut self.content);
                    return Ok(());
                }
                Err(error) if is_drift(&error) => {}
                Err(error) => {
                    self.is_doubtful = true;
                    return Err(error);
                }
            }
        }
        let mut wanted = std::mem::take(&mut self.content);
        apply(&mut wanted);
        self.restore(wanted, now).map(drop)
    }

    /// When [`advance`](Self::advance) has to be called: connections wait for being judged again.
    pub fn advance_at(&self) -> Option<Instant> {
        self.is_due.then(|| self.advanced.map_or_else(Instant::now, |at| at + EPOCH_INTERVAL))
    }

    /// Advances the epoch if that is due.
    pub fn advance(&mut self, now: Instant) -> Result<PolicyReport> {
        self.apply(&Delta::default(), &BTreeSet::new(), now)
    }

    /// Whether new connections that pass are logged.
    pub const fn samples(&self) -> bool {
        self.samples
    }

    /// Begins or ends logging new connections that pass, as far as the limit allows. Nothing else changes:
    /// no connection is judged again. Without a table nothing passes by its decisions, so nothing is logged.
    pub fn sample(&mut self, samples: bool, now: Instant) -> Result<()> {
        if self.samples == samples || self.epoch.is_none() {
            return Ok(());
        }
        let mut transaction = Transaction::new();
        let (set, elements) = (skeleton::sampled(), skeleton::sampled_elements());
        match samples {
            true => transaction.add_elements(&set, &elements),
            false => transaction.delete_elements(&set, &elements),
        };
        match self.commit(transaction) {
            Ok(()) => self.samples = samples,
            Err(error) if is_drift(&error) => {
                self.samples = samples;
                let wanted = std::mem::take(&mut self.content);
                self.restore(wanted, now)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the kernel hold exactly `wanted`: at the start, and after another program changed the
    /// table. Writes nothing if there is no difference; else all connections are judged again.
    pub fn restore(&mut self, wanted: Decisions, now: Instant) -> Result<PolicyReport> {
        // What is wanted stays known, so that another attempt can be made.
        self.content = wanted;
        self.is_doubtful = true;
        let mut tries = 0;
        loop {
            let (work, report) = self.difference()?;
            tries += 1;
            if report != PolicyReport::default() {
                match self.perform(work, now) {
                    Ok(()) => {}
                    Err(error) if is_drift(&error) && tries < MAX_TRIES => continue,
                    Err(error) => return Err(self.explained(error)),
                }
            }
            self.is_doubtful = false;
            return Ok(report);
        }
    }

    /// Removes the table; all packets pass then, if `inet russet-policy` lets them. Returns whether
    /// there was one.
    pub fn withdraw(&mut self) -> Result<bool> {
        let table = skeleton::table();
        (self.content, self.lists) = (Decisions::default(), Lists::default());
        (self.epoch, self.complete_at, self.samples, self.ends) = (None, None, false, None);
        if !self.nft.tables()?.iter().any(|info| info.table == table) {
            return Ok(false);
        }
        self.nft
            .commit(Transaction::new().destroy_table(&table))
            .map_err(|source| failed("delete", source))?;
        Ok(true)
    }

    const fn shape(&self, epoch: Epoch) -> Shape {
        let Self { settings, priority_by_tos, priority, samples, .. } = *self;
        let guards_ends = self.ends.is_some();
        Shape { epoch, bits: settings.bits, priority_by_tos, priority, samples, guards_ends }
    }

    /// Reads epoch and decisions; none of both without a table.
    fn read(&mut self) -> Result<()> {
        self.priority = self.found_priority()?;
        let fresh = elements(&mut self.nft, &skeleton::fresh())?.unwrap_or_default();
        let mark = fresh.first().and_then(|element| words::class_id(element.key.first()?));
        self.epoch = mark.and_then(|mark| self.settings.bits.epoch(mark));
        self.samples = !elements(&mut self.nft, &skeleton::sampled())?.unwrap_or_default().is_empty();
        self.ends = self.found_ends()?;
        self.content = Decisions::default();
        let found = self.found()?;
        let known = lists::read(&found);
        for (at, elements) in found {
            for element in elements {
                self.content.read(at, &element, &known);
            }
        }
        self.lists = Lists::of(&self.content, &known);
        Ok(())
    }

    /// The priority of the base chains that the kernel holds, or the one to begin with.
    fn found_priority(&mut self) -> Result<i32> {
        let chains = self.nft.chains(&skeleton::table())?;
        let found = chains.into_iter().filter_map(|info| Some(info.chain.base?.priority));
        let range = skeleton::CHAIN_PRIORITIES;
        Ok(found.filter(|priority| range.contains(priority)).max().unwrap_or(range.start))
    }

    /// The elements of all sets that exist.
    fn found(&mut self) -> Result<BTreeMap<(Place, Family), Vec<Element>>> {
        let mut found = BTreeMap::new();
        for at in Family::BOTH.into_iter().flat_map(|family| Place::EACH.map(|place| (place, family))) {
            found.insert(at, elements(&mut self.nft, &at.0.set(at.1))?.unwrap_or_default());
        }
        Ok(found)
    }

    /// What has to be done so that the kernel holds the content.
    fn difference(&mut self) -> Result<(Work, PolicyReport)> {
        let generation = self.nft.generation()?;
        self.priority = self.found_priority()?;
        let old = self.shape(self.epoch.unwrap_or(Epoch::FIRST));
        let fault = skeleton::spec(old).fault(&mut self.nft)?;
        let is_anew = matches!(fault, Some(Fault::Wrong(_)));
        let found = if is_anew { BTreeMap::new() } else { self.found()? };
        let mut constants = 0;
        for (set, wanted) in self.constants(old) {
            let found = elements(&mut self.nft, &set)?.unwrap_or_default();
            constants += replace(&mut Transaction::new(), &set, &found, &wanted).len();
        }
        let (mut work, mut changes) = (Work::default(), Changes::default());
        self.lists = Lists::of(&self.content, &lists::read(&found));
        for (at, wanted) in self.content.elements(&self.lists) {
            let found = found.get(&at).map_or(&[][..], Vec::as_slice);
            changes.replace(at, found, wanted);
        }
        let elements = changes.len() + constants;
        let is_whole = fault.is_none() && constants == 0 && changes.len() > 0;
        work.steps = match is_whole.then(|| Decisions::of_elements(&found)).flatten() {
            Some((old, mut lists)) => {
                let steps = old.steps_to(&self.content, &mut lists, self.settings.elements_max);
                self.lists = lists;
                steps
            }
            None => Steps { phases: vec![changes], ..Steps::default() },
        };
        let (differs, is_first) = (fault.is_some() || elements > 0, self.epoch.is_none());
        let advanced = (differs || self.is_due) && !is_first && self.settings.rechecks;
        let epoch = if advanced { old.epoch.next() } else { old.epoch };
        work.epoch = (advanced || is_first).then_some(epoch);
        if is_anew {
            self.priority = skeleton::next_priority(self.priority);
        }
        if fault.is_some() || constants > 0 || is_first {
            self.write_structure(&mut work.structure, self.shape(epoch), is_first)?;
        }
        work.lock = self.content.defaults.keys().map(|(_, address)| *address).collect();
        let addresses =
            |place| found.iter().filter(move |((at, _), _)| *at == place).flat_map(|(_, all)| all);
        let address = |element: &Element| element.key.first()?.first_address();
        work.lock.extend(addresses(Place::Pods).filter_map(address));
        let held: BTreeSet<IpAddr> = addresses(Place::Held).filter_map(address).collect();
        work.lock.retain(|address| !self.content.held.contains(address) && !held.contains(address));
        let structure = fault.map(|(Fault::Partial(text) | Fault::Wrong(text))| text);
        self.complete_at = Some(generation);
        Ok((work, PolicyReport { structure, elements, advanced }))
    }

    /// Adds what repairs the table besides decisions. For the first epoch nothing counts as judged yet; see
    /// [`begin_epochs`](Self::begin_epochs).
    fn write_structure(&mut self, transaction: &mut Transaction, shape: Shape, is_first: bool) -> Result<()> {
        let fault = skeleton::spec(shape).repair(&mut self.nft, transaction)?;
        let fresh = skeleton::fresh();
        for (set, mut wanted) in self.constants(shape) {
            if is_first && set == fresh {
                wanted.clear();
            }
            let found = match fault {
                Some(Fault::Wrong(_)) => Vec::new(),
                _ => elements(&mut self.nft, &set)?.unwrap_or_default(),
            };
            replace(transaction, &set, &found, &wanted);
        }
        Ok(())
    }

    /// The epoch to begin now, if one is due.
    fn epoch_due(&self, now: Instant) -> Option<Epoch> {
        let is_early = self.advanced.is_some_and(|at| now.saturating_duration_since(at) < EPOCH_INTERVAL);
        self.epoch.filter(|_| self.is_due && !is_early).map(Epoch::next)
    }

    /// Commits everything. Epochs have not begun as long as anything of the first one is missing.
    fn perform(&mut self, work: Work, now: Instant) -> Result<()> {
        let is_first = self.epoch.is_none();
        let judges_again = is_first || work.epoch.is_some() || !work.structure.is_empty();
        let observer = self.observer.take_if(|_| judges_again);
        observer.iter().for_each(EpochObserver::call);
        let done = self.try_perform(work, now, is_first);
        observer.iter().for_each(EpochObserver::call);
        self.observer = observer.or(self.observer.take());
        if is_first && done.is_err() {
            self.epoch = None;
        }
        done
    }

    /// Commits everything, a phase in one transaction if it is not too large.
    fn try_perform(&mut self, work: Work, now: Instant, is_first: bool) -> Result<()> {
        if let Some(epoch) = work.epoch.filter(|_| !is_first) {
            self.sweep(epoch)?;
        }
        let is_large = work.steps.is_large(self.settings.elements_max);
        let Work { structure: mut first, steps, lock, mut epoch } = work;
        let Steps { before, hold, complete, mut phases, behind } = steps;
        // What is created anew has the new epoch from the beginning: connections may have the old one's mark from what it
        // replaces, whose sets have gone.
        let has_epoch = !first.is_empty();
        self.is_due |= epoch.is_some() && !is_first;
        let mut is_early = false;
        self.commit_parts(before)?;
        if hold.len() > 0 {
            hold.write(&mut first);
            self.commit(std::mem::take(&mut first))?;
        }
        if complete.len() > 0 {
            complete.write(&mut first);
            self.commit(std::mem::take(&mut first))?;
            wait_until_judged();
        }
        let changes = phases.pop().unwrap_or_default();
        for phase in phases {
            phase.write(&mut first);
            self.commit(std::mem::take(&mut first))?;
        }
        if is_large {
            let (locked, unlocked) = changes.locks(&lock);
            locked.write(&mut first);
            self.commit(std::mem::take(&mut first))?;
            if has_epoch {
                self.epoch = epoch.or(self.epoch);
            }
            self.commit_parts(changes)?;
            unlocked.write(&mut first);
        } else {
            // What is judged by ranges that have not changed yet is judged again in an epoch that begins behind them.
            is_early = changes.has_ranges();
            changes.write(&mut first);
            if is_early {
                self.commit(std::mem::take(&mut first))?;
            }
        }
        if let Some(of_structure) = epoch.filter(|_| has_epoch && is_early && !is_first) {
            // It has begun before them.
            let next = of_structure.next();
            self.sweep(next)?;
            (self.epoch, epoch) = (Some(of_structure), Some(next));
        }
        self.write_epoch(&mut first, epoch.filter(|_| !is_first && (is_early || !has_epoch)));
        self.commit(first)?;
        if let Some(epoch) = epoch {
            (self.epoch, self.advanced, self.is_due) = (Some(epoch), Some(now), false);
            if is_first {
                self.begin_epochs(epoch)?;
            }
        }
        self.commit_parts(behind)
    }

    /// Begins the first epoch of a table, once it judges every packet. Another version's table, whose epoch is not known,
    /// may have had the same: it lets a packet pass that is under way when its sets go, with its epoch as the mark.
    fn begin_epochs(&mut self, epoch: Epoch) -> Result<()> {
        let bits = self.settings.bits;
        self.clear_marks([bits.half(Epoch::FIRST), bits.half(Epoch::FIRST.opposite())])?;
        let mut transaction = Transaction::new();
        transaction.add_elements(&skeleton::fresh(), &[skeleton::fresh_element(self.shape(epoch))]);
        self.commit(transaction)
    }

    /// Commits changes in as many transactions as they need.
    fn commit_parts(&mut self, changes: Changes) -> Result<()> {
        for part in changes.parts(self.settings.elements_max) {
            let mut transaction = Transaction::new();
            part.write(&mut transaction);
            self.commit(transaction)?;
        }
        Ok(())
    }

    /// Adds the change to an epoch.
    fn write_epoch(&self, transaction: &mut Transaction, epoch: Option<Epoch>) {
        let (Some(old), Some(new)) = (self.epoch, epoch) else { return };
        let [old, new] = [old, new].map(|epoch| self.shape(epoch));
        let fresh = skeleton::fresh();
        transaction.delete_elements(&fresh, &[skeleton::fresh_element(old)]);
        transaction.add_elements(&fresh, &[skeleton::fresh_element(new)]);
        transaction.flush_chain(&skeleton::table(), skeleton::EPOCH_CHAIN);
        transaction.add_rule(&skeleton::epoch_rule(new));
    }

    /// Clears the marks of connections that were judged when the numbers of the next epochs were in
    /// use before.
    fn sweep(&self, epoch: Epoch) -> Result<()> {
        let half = epoch.begins_a_half().then(|| self.settings.bits.half(epoch));
        self.clear_marks(half)
    }

    fn clear_marks(&self, halves: impl IntoIterator<Item = Half>) -> Result<()> {
        let mut halves = halves.into_iter().peekable();
        if halves.peek().is_none() {
            return Ok(());
        }
        let mut conntrack = Conntrack::open()?;
        for half in halves {
            conntrack.clear_mark(self.settings.bits.mask(), half.value, half.selector)?;
        }
        Ok(())
    }

    /// Commits a transaction at the known generation of the ruleset. After another program's commit, it
    /// is repeated if the table is still complete.
    fn commit(&mut self, mut transaction: Transaction) -> Result<()> {
        if transaction.is_empty() {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            let generation = match self.complete_at.take() {
                Some(generation) => generation,
                None => self.complete_generation()?,
            };
            tries += 1;
            match self.nft.commit(transaction.only_at(generation)) {
                Ok(()) => {
                    self.complete_at = Some(next_generation(generation));
                    return Ok(());
                }
                Err(error) if error.is_stale() && tries < MAX_TRIES => {}
                Err(source) => return Err(failed("change", source)),
            }
        }
    }

    /// A generation of the ruleset at which the table is complete but for its elements.
    fn complete_generation(&mut self) -> Result<u32> {
        let generation = self.nft.generation()?;
        let fault = match self.epoch {
            Some(epoch) => skeleton::spec(self.shape(epoch)).fault(&mut self.nft)?,
            None => Some(Fault::Partial("the table was missing".to_owned())),
        };
        match fault {
            None => Ok(generation),
            Some(Fault::Partial(fault) | Fault::Wrong(fault)) => {
                Err(PolicyError::Incomplete(DECISIONS_TABLE, fault))
            }
        }
    }

    /// The reason of a failure that the kernel's error does not tell.
    fn explained(&mut self, error: PolicyError) -> PolicyError {
        match &error {
            PolicyError::Commit { source, .. }
                if source.is_not_found() && ruleset::lacks_fib(&mut self.nft) =>
            {
                PolicyError::Unsupported("policies need CONFIG_NFT_FIB_INET, which this kernel lacks")
            }
            _ => error,
        }
    }
}

// === impl EpochObserver ===

impl EpochObserver {
    pub fn new(observer: impl Fn() + Send + 'static) -> Self {
        Self(Box::new(observer))
    }

    fn call(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for EpochObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpochObserver")
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self { bits: MarkBits::default(), rechecks: true, elements_max: ELEMENTS_MAX }
    }
}

/// Whether an error means that the kernel does not hold what was known.
fn is_drift(error: &PolicyError) -> bool {
    match error {
        PolicyError::Incomplete(..) => true,
        PolicyError::Commit { source, .. } => source.is_not_found() || source.is_exists(),
        _ => false,
    }
}

fn failed(verb: &str, source: CommitError) -> PolicyError {
    PolicyError::Commit { operation: format!("{verb} table {DECISIONS_TABLE}"), source }
}
