//! `/metrics`: the text is rendered for each scrape up to a limited rate, and cached beyond that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use prometheus_client::registry::Registry;

/// The registry, and the last rendered text.
pub(crate) struct Metrics {
    registry: Registry,
    printed: Mutex<Printed>,
}

struct Printed {
    text: Bytes,
    budget: RenderBudget,
}

/// Limits how often the text is rendered.
#[derive(Debug)]
struct RenderBudget {
    left: u32,
    /// The time up to which renewed budget has been added.
    at: Instant,
}

/// Texts that may be rendered in a row: several servers may scrape at the same moment.
const BURST: u32 = 20;
/// Time after which one more may be rendered. The text of a large node takes about a millisecond.
const GAIN_INTERVAL: Duration = Duration::from_millis(100);
/// The content type that Prometheus needs: as plain text it would refuse the type `info`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn answer(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.text(Instant::now()) {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("encode metrics: {error}\n")).into_response()
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Self {
        let budget = RenderBudget { left: BURST, at: Instant::now() };
        Self { registry, printed: Mutex::new(Printed { text: Bytes::new(), budget }) }
    }

    fn text(&self, now: Instant) -> Result<Bytes, std::fmt::Error> {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.budget.spend(now) || printed.text.is_empty() {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
            printed.text = text.into();
        }
        Ok(printed.text.clone())
    }
}

// === impl RenderBudget ===

impl RenderBudget {
    /// Whether the text may be rendered now.
    fn spend(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.at).as_millis() / GAIN_INTERVAL.as_millis();
        if gained > 0 {
            self.left = self.left.saturating_add(u32::try_from(gained).unwrap_or(BURST)).min(BURST);
            self.at = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn occasional_scrapes_are_rendered_and_excessive_ones_get_the_cached_text() {
        let (mut registry, counter) = (Registry::default(), Counter::<u64>::default());
        registry.register("it", "It", counter.clone());
        let metrics = Metrics::new(registry);
        let now = Instant::now();
        let read = |at| {
            let text = String::from_utf8(metrics.text(at).unwrap().to_vec()).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("it_total "));
            line.unwrap().parse::<u64>().unwrap()
        };
        for asked in 1..=100 {
            counter.inc();
            assert_eq!(read(now), asked.min(u64::from(BURST)));
        }
        assert_eq!(read(now + GAIN_INTERVAL), 100, "a tenth of a second later it is rendered once more");
        counter.inc();
        assert_eq!(read(now + GAIN_INTERVAL), 100);
        for asked in 0..u64::from(BURST) {
            assert_eq!(read(now + Duration::from_secs(60)), 101 + asked);
            counter.inc();
        }
    }
}
