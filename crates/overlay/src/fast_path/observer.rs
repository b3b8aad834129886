//! Reads what the programs have counted and learnt.

use russet_linux::bpf::{BpfError, Map};

use super::layout::{Carried, EndedFlows, KnownFlow, Setting, Traffic};

/// The maps that the programs write. Reading them stops no program.
#[derive(Debug)]
pub struct Observer {
    settings: Map,
    flows: Map,
    ended: Map,
    carried: Map,
    places: Map,
    traffic: Map,
}

/// What was carried of flows, each packet in one of both lists.
#[derive(Debug, Default)]
pub struct Counted {
    pub flows: Vec<KnownFlow>,
    /// Grows with each connection that begins and ends between two readings.
    pub ended: Vec<EndedFlows>,
}

// === impl Observer ===

impl Observer {
    pub(super) fn new(open: impl Fn(&str) -> Result<Map, BpfError>) -> Result<Self, BpfError> {
        Ok(Self {
            settings: open("settings")?,
            flows: open("flows")?,
            ended: open("ended")?,
            carried: open("carried")?,
            places: open("places")?,
            traffic: open("traffic")?,
        })
    }

    /// What was carried since the fast path was loaded.
    pub fn carried(&self) -> Result<Carried, BpfError> {
        Ok(Carried::sum(&self.carried.get(&0_u32.to_ne_bytes())?.unwrap_or_default()))
    }

    /// What was carried of a pod's interface since it is known; none if it is not, or has no place.
    pub fn traffic(&self, ifindex: u32) -> Result<Option<Traffic>, BpfError> {
        let Some(place) = self.places.get(&ifindex.to_ne_bytes())? else { return Ok(None) };
        Ok(self.traffic.get(&place)?.map(|value| Traffic::sum(&value)))
    }

    /// The number of the epoch, which flows have that may be carried; none while all are suspended.
    pub fn epoch(&self) -> Result<Option<Epoch>, BpfError> {
        let value = self.settings.get(&Setting::Epoch.key())?.unwrap_or_default();
        let number = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        Ok((number != 0).then_some(Epoch(number)))
    }

    /// All flows that are known, also those of an earlier epoch, and what was carried of ended ones.
    pub fn flows(&self) -> Result<Vec<KnownFlow>, BpfError> {
        let entries = self.flows.entries()?;
        Ok(entries.iter().filter_map(|(key, value)| KnownFlow::decode(key, value)).collect())
    }

    /// Reads what was carried of all flows, for one caller at a time that counts what is new of each. What the programs
    /// count as of ended connections in the meantime was in none of its readings.
    pub fn count(&self) -> Result<Counted, BpfError> {
        let key = Setting::Readings.key();
        let value = self.settings.get(&key)?.unwrap_or_default();
        let reading = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes)) | 1;
        self.settings.put(&key, &reading.to_ne_bytes())?;
        let flows = self.flows();
        self.settings.put(&key, &reading.wrapping_add(1).to_ne_bytes())?;
        let ended = self.ended.entries()?;
        let ended = ended.iter().filter_map(|(key, value)| EndedFlows::decode(key, value)).collect();
        Ok(Counted { flows: flows?, ended })
    }

    /// Gives back the room of a flow that has ended. If it lives again, it is learnt once more.
    pub fn forget(&self, flow: &KnownFlow) -> Result<(), BpfError> {
        self.flows.delete(&flow.tuple.encode()).map(drop)
    }
}

/// The number of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u32);

// === impl Epoch ===

impl Epoch {
    /// Whether a flow was learnt in it.
    pub const fn has(self, flow: &KnownFlow) -> bool {
        flow.epoch == self.0
    }
}
