//! Entry points for hostile bytes: selectors, documents of the Kubernetes API, and records of etcd.
//! No input makes them panic or take long, and what comes of it is the same for engine and
//! evaluator. Called by `main.rs` with committed inputs, and by cargo-fuzz (fuzz/).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_model::Selector;
use russet_verdict::engine::{Engine, Limits};
use russet_verdict::evaluator::Reason;
use russet_verdict::explain::Explanation;
use russet_verdict::flow::Flow;
use russet_verdict::generate::{cluster, flows};
use russet_verdict::ir::{Direction, Policy};
use russet_verdict::snapshot::Snapshot;
use russet_verdict::table::{Delta, Identity, Key, Part, SourceRange, Verdict, Word};
use russet_verdict::translate::{RULES_PER_POLICY_MAX, Translated, Translator};
use russet_verdict::world::Update;
use serde_json::Value;

/// One input takes milliseconds; on a busy machine it may take much longer, but not this long.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Small, so that inputs reach them.
const LIMITS: Limits =
    Limits { decisions: 5_000, identities: 200, segments: 32, rules: RULES_PER_POLICY_MAX };
/// Of so many flows of the cluster one is judged.
const FLOWS_STEP: usize = 23;

static FLOWS: LazyLock<Vec<Flow>> =
    LazyLock::new(|| flows().into_iter().map(|(_, flow)| flow).step_by(FLOWS_STEP).collect());

/// What the deltas make of a table, as the kernel has it.
#[derive(Default)]
struct Table {
    identities: BTreeMap<IpNet, Identity>,
    decisions: BTreeMap<Key, Word>,
    wide: BTreeMap<Key, Vec<SourceRange>>,
    defaults: BTreeMap<(Direction, IpAddr), Word>,
    /// Whether a limit is exceeded, so that more is denied than policies say.
    is_exceeded: bool,
}

/// A label selector.
pub fn selector(bytes: &[u8]) -> bool {
    let began = Instant::now();
    let Ok(selector) = Selector::parse(&String::from_utf8_lossy(bytes)) else { return false };
    let text = selector.to_string();
    let again = Selector::parse(&text).unwrap();
    assert_eq!(again.to_string(), text);
    let labels = [("a", "b"), ("role", "db"), ("projectcalico.org/namespace", "x")];
    for count in 0..=labels.len() {
        let value = |name: &str| labels.iter().take(count).find(|(key, _)| *key == name).map(|(_, it)| *it);
        assert_eq!(selector.matches_with(&value), again.matches_with(&value), "{text}");
    }
    assert!(began.elapsed() < TIME_MAX, "{:?}", began.elapsed());
    true
}

/// A document of an API, of any kind; also of kinds that are no policies.
pub fn document(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return false };
    judge(bytes.len(), &|translator| translator.put(&value), &|translator| translator.remove(&value))
}

/// The key and the value of a record, as members of one object.
pub fn record(bytes: &[u8]) -> bool {
    let Ok(input) = serde_json::from_slice::<Value>(bytes) else { return false };
    let (Some(key), Some(value)) = (input["key"].as_str(), input.get("value")) else { return false };
    let record = |translator: &mut Translator, value| translator.record(key, value).unwrap_or_default();
    judge(bytes.len(), &|translator| record(translator, Some(value)), &|translator| record(translator, None))
}

type Translate<'a> = &'a dyn Fn(&mut Translator) -> Translated;

/// Takes over an object, then removes it. Returns whether something follows from it.
fn judge(bytes: usize, put: Translate<'_>, remove: Translate<'_>) -> bool {
    let began = Instant::now();
    let mut translator = Translator::default();
    let (mut engine, mut snapshot, mut table) =
        (Engine::with_limits(LIMITS), Snapshot::default(), Table::default());
    let mut change = |updates: Vec<Update>| {
        for update in updates {
            engine.apply(update.clone());
            snapshot.apply(update);
        }
        table.apply(engine.flush());
        assert!(table.decisions.len() <= LIMITS.decisions, "{}", table.decisions.len());
        table.compare(&snapshot);
    };
    change(cluster());
    let translated = put(&mut translator);
    // One that can be read in part only counts, too, since it denies.
    let is_read = !translated.updates.is_empty();
    // What an object is translated to is not larger than it is.
    assert!(translated.updates.len() <= bytes, "{} updates of {bytes} bytes", translated.updates.len());
    let rules = translated.updates.iter().filter_map(policy_of).map(|it| it.ingress.len() + it.egress.len());
    assert!(rules.max().unwrap_or_default() <= 2 * RULES_PER_POLICY_MAX);
    change(translated.updates);
    change(remove(&mut translator).updates);
    assert!(began.elapsed() < TIME_MAX, "{:?}", began.elapsed());
    is_read
}

fn policy_of(update: &Update) -> Option<&Policy> {
    match update {
        Update::Policy(_, policy) => policy.as_deref(),
        _ => None,
    }
}

// === impl Table ===

impl Table {
    fn apply(&mut self, delta: Delta) {
        put_all(&mut self.identities, delta.identities);
        put_all(&mut self.decisions, delta.decisions);
        put_all(&mut self.wide, delta.wide);
        put_all(&mut self.defaults, delta.defaults);
        self.is_exceeded = delta.exceeded.map_or(self.is_exceeded, |limits| !limits.is_empty());
    }

    /// What the evaluator denies is denied here, and what it allows is allowed, unless a limit is
    /// exceeded. Both ends of a flow are asked; only pods of the first node have a default.
    fn compare(&self, snapshot: &Snapshot) {
        for flow in &*FLOWS {
            let explanation = Explanation::new(snapshot, flow);
            for end in [&explanation.trace.egress, &explanation.trace.ingress] {
                let Some(word) = self.word(end.direction, flow) else { continue };
                let is_open = word.verdict == Verdict::Allow;
                // The kernel does not ask the table about these.
                if end.reason == Reason::OwnNode {
                    continue;
                }
                let agree = is_open == end.allowed || (self.is_exceeded && !is_open);
                assert!(agree, "the table says {word:?}: {explanation}");
            }
        }
    }

    fn word(&self, direction: Direction, flow: &Flow) -> Option<Word> {
        let (local, peer) = match direction {
            Direction::Ingress => (flow.destination, flow.source),
            Direction::Egress => (flow.source, flow.destination),
        };
        let default = *self.defaults.get(&(direction, local))?;
        let around = self.identities.iter().filter(|(net, _)| net.contains(&peer));
        let around = around.max_by_key(|(net, _)| net.prefix_len());
        let peer = around.map_or(Identity::WORLD, |(_, identity)| *identity);
        let is_of_flow = |part: &Part| match *part {
            Part::Port(protocol, port) => (protocol, port) == (flow.protocol, flow.destination_port),
            Part::Range(protocol, first, last) => {
                protocol == flow.protocol && (first..=last).contains(&flow.destination_port)
            }
            Part::Protocol(protocol) => protocol == flow.protocol,
            Part::All => true,
        };
        let mine = |key: &Key| (key.direction, key.local, key.peer) == (direction, local, peer);
        let narrowest = self.decisions.iter().filter(|(key, _)| mine(key) && is_of_flow(&key.part));
        let Some((key, word)) = narrowest.min_by_key(|(key, _)| key.part) else { return Some(default) };
        if word.verdict != Verdict::Wide {
            return Some(*word);
        }
        let ranges = self.wide.get(key).into_iter().flatten();
        let here = |it: &&SourceRange| (it.first..=it.last).contains(&flow.source_port);
        Some(ranges.into_iter().find(here).map_or(Word::DENY, |range| range.word))
    }
}

fn put_all<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => _ = map.insert(key, value),
            None => _ = map.remove(&key),
        }
    }
}
