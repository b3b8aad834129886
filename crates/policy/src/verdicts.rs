//! The table in the kernel: adds and removes single entries, and compares and repairs the whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use russet_addr::{Family, IfName, IpNet};
use russet_nft::{CommitError, Element, Nft, Set, Table, Transaction};

use crate::error::PolicyError;
use crate::ruleset::{self, Direction, Shape, TABLE, table};
use crate::table_spec::{Fault, TableSpec, disarm, elements, replace};
use crate::{Entry, Guards, PortGuard, Verdict, ports};

/// `inet russet-policy` of one network namespace.
#[derive(Debug)]
pub struct Verdicts {
    nft: Nft,
    /// The generation of the ruleset at which the table was complete. While only we commit, the
    /// next generation is ours, and the table need not be read.
    complete_at: Option<u32>,
    /// The node-dependent settings of the guards.
    guards: Arc<Guards>,
    /// Whether the kernel looks up sources in its routes; assumed until it refuses such a rule.
    fib: bool,
    /// Whether the kernel has no nf_tables for bridges.
    no_bridges: bool,
    /// Whether the ports of bridges must be guarded.
    has_ports: bool,
}

/// The differences that were repaired.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerdictReport {
    /// A missing or different part of table, chains, maps or rules; none if there was none.
    pub structure: Option<String>,
    /// Host ends whose entries were missing or different.
    pub added: Vec<IfName>,
    /// Names of entries without an interface.
    pub removed: Vec<String>,
    /// Host ends whose additional sources were missing or different.
    pub sources: Vec<String>,
}

/// The verdict in force for one host end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerdictState {
    /// A verdict, in both directions.
    InForce(Verdict),
    /// No entry: it carries nothing.
    None,
    /// Entries that Russet would not make.
    Other,
    /// The table is incomplete: no verdicts are applied.
    Unjudged(String),
}

type Wanted<'a> = BTreeMap<&'a IfName, Verdict>;

/// A [`VerdictReport`] under construction: each name is in both maps.
#[derive(Default)]
struct ReportBuilder {
    structure: Option<String>,
    added: BTreeSet<IfName>,
    removed: BTreeSet<String>,
    sources: BTreeSet<String>,
}

/// Attempts at a change that other commits overtake.
const MAX_TRIES: usize = 5;

type Result<T, E = PolicyError> = std::result::Result<T, E>;

// === impl Verdicts ===

impl Verdicts {
    /// Opens nf_tables in the calling thread's network namespace; changes nothing.
    pub fn open() -> Result<Self> {
        Ok(Self {
            nft: Nft::open()?,
            complete_at: None,
            guards: Arc::default(),
            fib: true,
            no_bridges: false,
            has_ports: false,
        })
    }

    /// Sets the node-dependent settings of the guards for later calls; changes nothing yet.
    pub fn guard(&mut self, guards: &Arc<Guards>) {
        if self.guards != *guards {
            self.guards = Arc::clone(guards);
            self.complete_at = None;
        }
    }

    /// The table as it should be.
    fn spec(&self) -> TableSpec {
        ruleset::spec(Shape { fib: self.fib, calico: self.guards.calico })
    }

    /// Our netlink port in the messages of a monitor of nf_tables.
    pub fn port(&self) -> std::io::Result<u32> {
        self.nft.port()
    }

    /// Adds an entry; an existing one is kept. The cost does not depend on the number of entries.
    /// Needs a complete table ([`reconcile`](Self::reconcile)), which is checked if another program
    /// has committed since the last check.
    pub fn put(&mut self, entry: &Entry) -> Result<()> {
        let Entry { host_name, verdict } = entry;
        for tries in 1.. {
            if self.complete_at.is_none() {
                self.ensure_complete()?;
            }
            if tries >= MAX_TRIES {
                // Another program keeps committing. A later change of the table is found by the
                // process that maintains it.
                self.complete_at = None;
            }
            let mut transaction = Transaction::new();
            for direction in Direction::BOTH {
                transaction.add_elements(&direction.map(), &[direction.element(host_name, *verdict)]);
            }
            match self.commit(&mut transaction) {
                Ok(()) => break,
                Err(error) if error.is_stale() => {}
                Err(error) if error.is_exists() => return self.replace(entry),
                Err(error) if error.is_not_found() => return Err(incomplete(&error)),
                Err(source) => return Err(commit(format!("put the verdict of {host_name}"), source)),
            }
        }
        Ok(())
    }

    /// Removes an entry; returns whether there was one.
    pub fn remove(&mut self, host_name: &IfName) -> Result<bool> {
        let operation = || format!("remove the verdict of {host_name}");
        self.change(operation, |nft| {
            let mut transaction = Transaction::new();
            for (direction, element) in elements_of(nft, host_name)? {
                transaction.delete_elements(&direction.map(), &[element]);
            }
            Ok(transaction)
        })
    }

    /// Whether this entry is in force.
    pub fn holds(&mut self, entry: &Entry) -> Result<bool> {
        Ok(self.verdict_state(&entry.host_name)? == VerdictState::InForce(entry.verdict))
    }

    pub fn verdict_state(&mut self, host_name: &IfName) -> Result<VerdictState> {
        if let Some(Fault::Partial(fault) | Fault::Wrong(fault)) = self.spec().fault(&mut self.nft)? {
            return Ok(VerdictState::Unjudged(fault));
        }
        let found = elements_of(&mut self.nft, host_name)?;
        let verdicts: Vec<_> = found.iter().map(|(_, element)| ruleset::verdict(element)).collect();
        Ok(match verdicts.as_slice() {
            [] => VerdictState::None,
            [Some(one), Some(other)] if one == other => VerdictState::InForce(*one),
            _ => VerdictState::Other,
        })
    }

    /// Reconciles the table with exactly `wanted`, in one transaction: rules and entries take
    /// effect together, so that interfaces with an entry lose no packet. Writes nothing if there is
    /// no difference.
    pub fn reconcile(&mut self, wanted: &[Entry]) -> Result<VerdictReport> {
        self.repair(wanted, true)
    }

    /// Like [`reconcile`](Self::reconcile), but keeps other entries: for one of several processes,
    /// each of which knows only its own.
    pub fn complete(&mut self, wanted: &[Entry]) -> Result<VerdictReport> {
        self.repair(wanted, false)
    }

    /// Removes the table; all packets pass then. Returns whether there was one.
    pub fn withdraw(&mut self) -> Result<bool> {
        self.withdraw_table(&ports::table())?;
        self.withdraw_table(&table())
    }

    fn withdraw_table(&mut self, table: &Table) -> Result<bool> {
        self.complete_at = None;
        disarm(&mut self.nft, table)?;
        self.change(
            || format!("delete table {table}"),
            |nft| {
                let mut transaction = Transaction::new();
                if nft.tables()?.iter().any(|info| info.table == *table) {
                    transaction.delete_table(table);
                }
                Ok(transaction)
            },
        )
    }

    /// Sets the prefixes from which a host end may send besides the addresses that are routed to
    /// it. Without a table nothing is guarded, and nothing has to be permitted.
    pub fn put_sources(&mut self, host_name: &IfName, nets: &[IpNet]) -> Result<()> {
        let operation = || format!("put the sources of {host_name}");
        self.change(operation, |nft| {
            let mut transaction = Transaction::new();
            for family in Family::BOTH {
                let set = ruleset::sources(family);
                let Some(mut found) = elements(nft, &set)? else { continue };
                found.retain(|element| ruleset::host_name(element).as_ref() == Some(host_name));
                let wanted = ruleset::source_elements(family, host_name, nets);
                replace(&mut transaction, &set, &found, &wanted);
            }
            Ok(transaction)
        })
        .map(drop)
    }

    /// Guards the ports of bridges; true if they were not guarded. A kernel without nf_tables for bridges guards none, which is logged once.
    pub fn guard_ports(&mut self) -> Result<bool> {
        self.has_ports = true;
        let guards = Arc::clone(&self.guards);
        match self.change_ports("repair", |nft| ports::repairing(nft, guards.ports.as_ref())) {
            Err(PolicyError::Commit { source, .. }) if source.is_unsupported() || source.is_not_found() => {
                self.no_bridges = true;
                tracing::warn!(error = %source, "this kernel has no CONFIG_NF_TABLES_BRIDGE: what pods send to the others on their bridge is not checked");
                Ok(false)
            }
            done => done,
        }
    }

    /// Lets a port of a bridge send this and nothing else. False on a kernel without nf_tables for bridges.
    pub fn put_port(&mut self, host_name: &IfName, guard: &PortGuard) -> Result<bool> {
        self.guard_ports()?;
        self.change_ports(&format!("guard port {host_name} in"), |nft| {
            ports::guarding(nft, host_name, Some(guard))
        })?;
        Ok(!self.no_bridges)
    }

    /// Whether a port is guarded by exactly this; none on a kernel without nf_tables for bridges.
    pub fn is_port_guarded(&mut self, host_name: &IfName, guard: &PortGuard) -> Result<Option<bool>> {
        if self.no_bridges {
            return Ok(None);
        }
        if ports::is_guarded(&mut self.nft, host_name, guard)? {
            return Ok(Some(true));
        }
        Ok(ports::is_supported()?.then_some(false))
    }

    /// Removes what a port may send; says whether there was anything.
    pub fn remove_port(&mut self, host_name: &IfName) -> Result<bool> {
        self.change_ports(&format!("remove port {host_name} from"), |nft| {
            ports::guarding(nft, host_name, None)
        })
    }

    /// Changes the table of ports.
    fn change_ports(
        &mut self,
        verb: &str,
        make: impl FnMut(&mut Nft) -> Result<Transaction>,
    ) -> Result<bool> {
        if self.no_bridges {
            return Ok(false);
        }
        self.change(|| format!("{verb} table {}", ports::TABLE), make)
    }

    fn repair(&mut self, wanted: &[Entry], alone: bool) -> Result<VerdictReport> {
        let mut report = self.repair_table(wanted, alone)?;
        if self.has_ports && self.guard_ports()? {
            report.structure.get_or_insert_with(|| format!("{} was missing or different", ports::TABLE));
        }
        Ok(report)
    }

    /// Leaves out the lookup of sources where the kernel does not support it; all other rules still
    /// apply.
    fn repair_table(&mut self, wanted: &[Entry], alone: bool) -> Result<VerdictReport> {
        match self.try_repair_table(wanted, alone) {
            Err(PolicyError::Commit { source, .. })
                if self.fib && source.is_not_found() && ruleset::lacks_fib(&mut self.nft) =>
            {
                self.fib = false;
                let report = self.try_repair_table(wanted, alone);
                match &report {
                    Ok(_) => tracing::warn!(
                        "this kernel has no CONFIG_NFT_FIB_INET: no source of a pod's packets is checked but by rp_filter"
                    ),
                    Err(_) => self.fib = true,
                }
                report
            }
            done => done,
        }
    }

    fn try_repair_table(&mut self, wanted: &[Entry], alone: bool) -> Result<VerdictReport> {
        self.complete_at = None;
        let guards = Arc::clone(&self.guards);
        // A process that does not know the setting keeps it.
        let calico =
            guards.calico.map_or_else(|| ruleset::guarded_calico(&mut self.nft), |on| Ok(Some(on)))?;
        let spec = ruleset::spec(Shape { fib: self.fib, calico });
        let wanted: Wanted<'_> = wanted.iter().map(|entry| (&entry.host_name, entry.verdict)).collect();
        let mut news = ReportBuilder::default();
        let operation = || format!("make {TABLE} right");
        self.change(operation, |nft| {
            news = ReportBuilder::default();
            let mut transaction = Transaction::new();
            let fault = spec.repair(nft, &mut transaction)?;
            let anew = matches!(fault, Some(Fault::Wrong(_)));
            let mut found = |set: &Set| {
                let found = if anew { None } else { elements(nft, set)? };
                Ok::<_, PolicyError>(found.unwrap_or_default())
            };
            for direction in Direction::BOTH {
                let found = found(&direction.map())?;
                difference(&mut transaction, direction, &found, &wanted, alone, &mut news);
            }
            for (family, nets) in
                Family::BOTH.into_iter().flat_map(|f| guards.sources.iter().map(move |all| (f, all)))
            {
                let set = ruleset::sources(family);
                let wanted =
                    nets.iter().flat_map(|(name, nets)| ruleset::source_elements(family, name, nets));
                let wanted: Vec<Element> = wanted.collect();
                let changed = replace(&mut transaction, &set, &found(&set)?, &wanted);
                news.sources.extend(changed.iter().map(display_name));
            }
            if let Some(Fault::Partial(fault) | Fault::Wrong(fault)) = fault {
                news.structure = Some(fault);
            }
            Ok(transaction)
        })?;
        let ReportBuilder { structure, added, removed, sources } = news;
        let sources = sources.into_iter().collect();
        Ok(VerdictReport {
            structure,
            added: added.into_iter().collect(),
            removed: removed.into_iter().collect(),
            sources,
        })
    }

    fn replace(&mut self, entry: &Entry) -> Result<()> {
        let Entry { host_name, verdict } = entry;
        let operation = || format!("replace the verdict of {host_name}");
        self.change(operation, |nft| {
            let mut transaction = Transaction::new();
            for (direction, element) in elements_of(nft, host_name)? {
                transaction.delete_elements(&direction.map(), &[element]);
            }
            for direction in Direction::BOTH {
                transaction.add_elements(&direction.map(), &[direction.element(host_name, *verdict)]);
            }
            Ok(transaction)
        })
        .map(drop)
    }

    /// Commits the transaction that `make` returns for the current state; repeats it if another
    /// commit was faster. False if there was nothing to do.
    fn change(
        &mut self,
        operation: impl Fn() -> String,
        mut make: impl FnMut(&mut Nft) -> Result<Transaction>,
    ) -> Result<bool> {
        let mut tries = 0;
        loop {
            let mut transaction = make(&mut self.nft)?;
            if transaction.is_empty() {
                return Ok(false);
            }
            tries += 1;
            match self.commit(&mut transaction) {
                Ok(()) => return Ok(true),
                Err(error) if error.is_stale() => {
                    // The generation is forgotten, so this happens only once.
                    tries -= 1;
                }
                Err(error) if tries < MAX_TRIES && (error.is_not_found() || error.is_exists()) => {}
                Err(source) => return Err(commit(operation(), source)),
            }
        }
    }

    /// Commits a change of entries, which keeps a complete table complete. With a known generation
    /// it is refused as stale after a foreign commit, and the generation is then forgotten.
    fn commit(&mut self, transaction: &mut Transaction) -> Result<(), CommitError> {
        let known = self.complete_at.take();
        if let Some(generation) = known {
            transaction.only_at(generation);
        }
        let done = self.nft.commit(transaction);
        self.complete_at = match &done {
            Ok(()) => known.map(next_generation),
            // The transaction was empty.
            Err(error) if error.is_exists() => known,
            Err(_) => None,
        };
        done
    }

    /// Checks that the table is complete; later commits need no check until another program
    /// commits.
    fn ensure_complete(&mut self) -> Result<()> {
        self.complete_at = None;
        let generation = self.nft.generation()?;
        match self.spec().fault(&mut self.nft)? {
            None => {
                self.complete_at = Some(generation);
                Ok(())
            }
            Some(Fault::Partial(fault) | Fault::Wrong(fault)) => Err(PolicyError::Incomplete(TABLE, fault)),
        }
    }
}

/// The generation after our own commit (`nf_tables_commit`: incremented, skipping 0).
pub(crate) fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

/// The host end of an element, for a report.
fn display_name(element: &Element) -> String {
    ruleset::host_name(element).map_or_else(|| format!("{:?}", element.key), |it| it.to_string())
}

/// The elements of a host end, read without listing the others.
fn elements_of(nft: &mut Nft, host_name: &IfName) -> Result<Vec<(Direction, Element)>> {
    let mut found = Vec::new();
    for direction in Direction::BOTH {
        let like = direction.element(host_name, Verdict::Allow);
        found.extend(nft.element(&direction.map(), &like)?.map(|element| (direction, element)));
    }
    Ok(found)
}

/// Changes the elements of a map to the wanted ones. With `alone`, other entries are removed.
fn difference(
    transaction: &mut Transaction,
    direction: Direction,
    found: &[Element],
    wanted: &Wanted<'_>,
    alone: bool,
    news: &mut ReportBuilder,
) {
    let mut missing = wanted.clone();
    let mut unwanted = Vec::new();
    for element in found {
        let name = ruleset::host_name(element);
        match name.as_ref().and_then(|name| Some((name, *wanted.get(name)?))) {
            Some((name, verdict)) if ruleset::verdict(element) == Some(verdict) => _ = missing.remove(name),
            Some(_) => unwanted.push(element.clone()),
            None if alone => {
                news.removed.insert(display_name(element));
                unwanted.push(element.clone());
            }
            None => {}
        }
    }
    if !unwanted.is_empty() {
        transaction.delete_elements(&direction.map(), &unwanted);
    }
    let missing: Vec<Element> = missing
        .into_iter()
        .map(|(name, verdict)| {
            news.added.insert(name.clone());
            direction.element(name, verdict)
        })
        .collect();
    transaction.add_elements(&direction.map(), &missing);
}

fn incomplete(reason: &dyn fmt::Display) -> PolicyError {
    PolicyError::Incomplete(TABLE, reason.to_string())
}

fn commit(operation: String, source: CommitError) -> PolicyError {
    PolicyError::Commit { operation, source }
}

// === impl VerdictReport ===

impl VerdictReport {
    /// Whether there was no difference.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

// === impl VerdictState ===

impl fmt::Display for VerdictState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InForce(verdict) => write!(f, "{verdict}"),
            Self::None => f.write_str("none, so it carries nothing"),
            Self::Other => f.write_str("not one of Russet's verdicts"),
            Self::Unjudged(fault) => write!(f, "none in force: {fault}"),
        }
    }
}
