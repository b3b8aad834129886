//! The rows of local addresses, shared by those of which the same rules decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::peers::{Peers, Resolved};
use super::predicate::{PredicateId, Vector};
use super::program::Program;
use super::row::Row;
use crate::table::{Identity, Word};

/// Rows by their peers. They are shared with what the kernel has, and copied only when they change.
pub(super) type Rows = Arc<BTreeMap<Identity, Arc<Row>>>;

/// The number of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClassId(u32);

/// The classes in use.
#[derive(Debug, Default)]
pub(super) struct Classes {
    ids: BTreeMap<Arc<Program>, ClassId>,
    entries: BTreeMap<ClassId, Class>,
    next: u32,
}

/// A class.
#[derive(Debug)]
pub(super) struct Class {
    program: Arc<Program>,
    predicates: Vec<PredicateId>,
    users: usize,
    world: Arc<Row>,
    /// The rows that differ from the default.
    pub(super) rows: Rows,
    /// The identities of which the row may have changed since the last flush; `None` is all.
    pub(super) changed: Option<BTreeSet<Identity>>,
    /// How many entries one address with these rows needs.
    pub(super) size: usize,
    /// Whether a row had more segments than allowed.
    pub(super) is_cut_too_often: bool,
}

// === impl Classes ===

impl Classes {
    /// Counts a user of the class of a program.
    pub(super) fn acquire(&mut self, program: Program) -> ClassId {
        let program = Arc::new(program);
        if let Some(&id) = self.ids.get(&program) {
            if let Some(class) = self.entries.get_mut(&id) {
                class.users += 1;
            }
            return id;
        }
        let id = ClassId(self.next);
        self.next += 1;
        self.entries.insert(id, Class::new(program.clone()));
        self.ids.insert(program, id);
        id
    }

    /// Takes that back.
    pub(super) fn release(&mut self, id: ClassId) {
        let Some(class) = self.entries.get_mut(&id) else { return };
        class.users -= 1;
        if class.users == 0 {
            self.ids.remove(&class.program);
            self.entries.remove(&id);
        }
    }

    /// Computes the rows that are new or may have changed. Returns whether one did.
    pub(super) fn update(&mut self, resolved: &Resolved, peers: &Peers, max_segments: usize) -> bool {
        let mut is_changed = false;
        for class in self.entries.values_mut() {
            if class.changed.is_none() || resolved.worlds.contains(&class.program.family) {
                class.compute_all(peers, max_segments);
            } else if !resolved.changed.is_empty() || !resolved.removed.is_empty() {
                class.compute(resolved, peers, max_segments);
            }
            is_changed |= class.changed.as_ref().is_none_or(|changed| !changed.is_empty());
        }
        is_changed
    }

    /// Forgets what changed.
    pub(super) fn settle(&mut self) {
        self.entries.values_mut().for_each(|class| class.changed = Some(BTreeSet::new()));
    }

    pub(super) fn get(&self, id: ClassId) -> Option<&Class> {
        self.entries.get(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len().max(self.ids.len())
    }
}

// === impl Class ===

impl Class {
    fn new(program: Arc<Program>) -> Self {
        Self {
            predicates: program.predicates(),
            program,
            users: 1,
            world: Arc::new(Row::constant(Word::DENY)),
            rows: Rows::default(),
            changed: None,
            size: 0,
            is_cut_too_often: false,
        }
    }

    /// What counts for identities without a row.
    pub(super) fn default(&self) -> Word {
        self.world.all()
    }

    fn compute_all(&mut self, peers: &Peers, max_segments: usize) {
        let family = self.program.family;
        let world = peers.world(family);
        self.changed = None;
        self.is_cut_too_often = false;
        self.world = self.row(world, max_segments);
        let mut known = BTreeMap::from([(self.project(world), self.world.clone())]);
        let mut rows = BTreeMap::from([(Identity::WORLD, self.world.clone())]);
        for (identity, vector) in peers.identities.of_family(family) {
            rows.insert(identity, self.known_row(vector, &mut known, max_segments));
        }
        rows.retain(|_, row| !row.is_plain(self.default()));
        self.size = rows.values().map(|row| row.len()).sum();
        self.rows = Arc::new(rows);
    }

    fn compute(&mut self, resolved: &Resolved, peers: &Peers, max_segments: usize) {
        let family = self.program.family;
        let mut known = BTreeMap::from([(self.project(peers.world(family)), self.world.clone())]);
        for identity in resolved.changed.iter().chain(&resolved.removed) {
            let entry = peers.identities.get(*identity).filter(|entry| entry.family == family);
            let row = entry.map(|entry| self.known_row(&entry.vector, &mut known, max_segments));
            let row = row.filter(|row| !row.is_plain(self.default()));
            if row.as_ref() == self.rows.get(identity) {
                continue;
            }
            let rows = Arc::make_mut(&mut self.rows);
            let added = row.as_ref().map_or(0, |row| row.len());
            let old = match row {
                Some(row) => rows.insert(*identity, row),
                None => rows.remove(identity),
            };
            self.size = self.size + added - old.map_or(0, |row| row.len());
            if let Some(changed) = &mut self.changed {
                changed.insert(*identity);
            }
        }
    }

    /// The row of a peer. Peers whose answers the program does not tell apart have the same one.
    fn known_row(
        &mut self,
        vector: &Vector,
        known: &mut BTreeMap<Vector, Arc<Row>>,
        max_segments: usize,
    ) -> Arc<Row> {
        let projected = self.project(vector);
        if let Some(row) = known.get(&projected) {
            return row.clone();
        }
        let row = self.row(&projected, max_segments);
        known.insert(projected, row.clone());
        row
    }

    fn row(&mut self, vector: &Vector, max_segments: usize) -> Arc<Row> {
        let (row, segments) = self.program.row(vector);
        if segments > max_segments {
            self.is_cut_too_often = true;
            return Arc::new(Row::constant(Word::DENY));
        }
        Arc::new(row)
    }

    /// What the program asks of a vector. Both are in order.
    fn project(&self, vector: &Vector) -> Vector {
        let asked = |(id, _): &&(PredicateId, _)| {
            *id == PredicateId::OVERFLOW || self.predicates.binary_search(id).is_ok()
        };
        vector.iter().filter(asked).cloned().collect()
    }
}
