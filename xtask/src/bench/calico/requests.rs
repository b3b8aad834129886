//! Requests to etcd, by its own counters.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Unary calls by method. Streams are none: a watch and a lease's keep-alive are opened once and stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<String, u64>);

/// A line of etcd's metrics: `grpc_server_started_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12`.
const COUNTER: &str = "grpc_server_started_total{";

// === impl Requests ===

impl Requests {
    /// Reads etcd's metrics.
    pub fn parse(metrics: &str) -> Result<Self> {
        let wrong = |line: &str| Error::Found(format!("etcd's metrics: {line:?} is not understood"));
        let mut found = BTreeMap::new();
        let mut known = false;
        for line in metrics.lines() {
            let Some((labels, count)) = line.strip_prefix(COUNTER).and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            known = true;
            let method = label(labels, "grpc_method").ok_or_else(|| wrong(line))?;
            if label(labels, "grpc_type") == Some("unary") {
                // Metrics are floating-point numbers; large ones have an exponent.
                let count: f64 = count.trim().parse().map_err(|_| wrong(line))?;
                *found.entry(method.to_owned()).or_default() += count as u64;
            }
        }
        if known { Ok(Self(found)) } else { Err(Error::Found(format!("etcd's metrics have no {COUNTER}"))) }
    }

    /// The requests since then.
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |method: &String| before.0.get(method).copied().unwrap_or_default();
        let grown =
            self.0.iter().map(|(method, count)| (method.clone(), count.saturating_sub(earlier(method))));
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }

    pub fn add(&mut self, other: &Self) {
        for (method, count) in &other.0 {
            *self.0.entry(method.clone()).or_default() += count;
        }
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// By method, each divided by `operations`.
    pub fn shares(&self, operations: usize) -> Value {
        let share = |count: &u64| json!((*count as f64 / operations as f64 * 100.0).round() / 100.0);
        self.0.iter().map(|(method, count)| (method.clone(), share(count))).collect()
    }
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# TYPE grpc_server_started_total counter
grpc_server_started_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12
grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1.5e+06
grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 7
grpc_server_handled_total{grpc_code="OK",grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 11
"#;

    #[test]
    fn unary_calls_are_counted_and_streams_are_not() {
        let requests = Requests::parse(METRICS).unwrap();
        assert_eq!(requests.total(), 1_500_012);
        assert_eq!(requests.shares(2), json!({ "Range": 6.0, "Txn": 750_000.0 }));
        assert!(
            Requests::parse("etcd_up 1\n").is_err(),
            "a server without the counter is an error, not a server without requests"
        );
    }

    #[test]
    fn what_was_asked_before_a_sample_does_not_count() {
        let before = Requests::parse(METRICS).unwrap();
        let after = METRICS.replace("} 12", "} 15").replace("} 7", "} 8");
        let since = Requests::parse(&after).unwrap().since(&before);
        assert_eq!((since.total(), since.shares(1)), (3, json!({ "Range": 3.0 })));
        let mut sum = since.clone();
        sum.add(&since);
        assert_eq!(sum.total(), 6);
    }
}
