//! The output of `russet cni --timing`: each plugin's time, and its stages inside the agent.

use std::time::Duration;

use russet_cni_spec::relay::Timing;
use russet_runtime::PluginTime;
use serde_json::{Map, Value, json};

use crate::output;

/// The times of one run.
pub struct TimingReport {
    total: Duration,
    plugins: Vec<PluginTime>,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Milliseconds with three decimals.
fn shown(us: u64) -> String {
    format!("{}.{:03} ms", us / 1000, us % 1000)
}

/// The part of the time that no stage accounts for.
fn unaccounted_us(timing: &Timing) -> u64 {
    timing.stages.iter().fold(timing.total_us, |rest, (_, us)| rest.saturating_sub(*us))
}

// === impl TimingReport ===

impl TimingReport {
    pub fn new(total: Duration, plugins: Vec<PluginTime>) -> Self {
        Self { total, plugins }
    }

    /// For programs: every time in microseconds.
    pub fn to_value(&self) -> Value {
        let inside = |timing: &Timing| {
            let stages: Map<String, Value> =
                timing.stages.iter().map(|(stage, us)| (stage.clone(), (*us).into())).collect();
            json!({ "plugin": timing.plugin, "total_us": timing.total_us, "stages_us": stages })
        };
        let plugin = |it: &PluginTime| {
            let inside: Vec<Value> = it.inside.iter().map(inside).collect();
            json!({
                "plugin": it.plugin,
                "verb": it.verb.as_str(),
                "succeeded": it.succeeded,
                "total_us": us(it.elapsed),
                "inside": inside,
            })
        };
        let plugins: Vec<Value> = self.plugins.iter().map(plugin).collect();
        json!({ "total_us": us(self.total), "plugins": plugins })
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut rows = Vec::new();
        for it in &self.plugins {
            let name = if it.succeeded { it.plugin.clone() } else { format!("{} (failed)", it.plugin) };
            rows.push(vec![name, it.verb.as_str().to_owned(), String::new(), shown(us(it.elapsed))]);
            for timing in &it.inside {
                let row = |stage: &str, us| {
                    vec![format!("  {}", timing.plugin), String::new(), stage.to_owned(), shown(us)]
                };
                rows.extend(timing.stages.iter().map(|(stage, us)| row(stage, *us)));
                rows.push(row("rest", unaccounted_us(timing)));
                rows.push(row("total", timing.total_us));
            }
        }
        rows.push(vec!["all".to_owned(), String::new(), String::new(), shown(us(self.total))]);
        output::table(&["PLUGIN", "VERB", "STAGE", "TIME"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use russet_cni_spec::Verb;

    use super::*;

    fn report() -> TimingReport {
        let stages = vec![("address".to_owned(), 3100), ("wiring".to_owned(), 5000)];
        let inside = vec![Timing { plugin: "russet".into(), total_us: 9120, stages }];
        let plugin = |plugin: &str, ms, succeeded, inside| PluginTime {
            plugin: plugin.to_owned(),
            verb: Verb::Add,
            elapsed: Duration::from_millis(ms),
            succeeded,
            inside,
        };
        let plugins = vec![plugin("russet", 12, true, inside), plugin("tuning", 3, false, Vec::new())];
        TimingReport::new(Duration::from_micros(15_250), plugins)
    }

    #[test]
    fn times_are_numbers_of_microseconds_for_programs() {
        let text = r#"{"total_us":15250,"plugins":[{"plugin":"russet","verb":"ADD","succeeded":true,"total_us":12000,"inside":[{"plugin":"russet","total_us":9120,"stages_us":{"address":3100,"wiring":5000}}]},{"plugin":"tuning","verb":"ADD","succeeded":false,"total_us":3000,"inside":[]}]}"#;
        assert_eq!(report().to_value().to_string(), text);
    }

    #[test]
    fn the_table_shows_the_time_outside_of_stages() {
        let text = "\
PLUGIN           VERB  STAGE    TIME
russet           ADD            12.000 ms
  russet               address  3.100 ms
  russet               wiring   5.000 ms
  russet               rest     1.020 ms
  russet               total    9.120 ms
tuning (failed)  ADD            3.000 ms
all                             15.250 ms
";
        assert_eq!(report().table(), text);
    }
}
