//! `POST /v1/fast-path` and `/v1/fast-path/pause` on the agent's socket.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::Signal;
use super::pauses::{PauseReport, PauseRequest};
use super::view::{Ends, Packets, Taken};

/// Path on the agent's socket.
pub const FAST_PATH_PATH: &str = "/v1/fast-path";

/// About which flows a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FastPathRequest {
    pub flows: Vec<Ends>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastPathReport {
    /// [`Self::SCHEMA`].
    pub schema: u32,
    /// The agent's setting.
    pub setting: String,
    /// Why nothing is carried; absent while the fast path is on.
    pub off: Option<String>,
    /// In the order of the question.
    pub flows: Vec<Taken>,
    /// What was carried of each pod's interface.
    pub interfaces: Vec<InterfaceTraffic>,
}

/// What the fast path has carried of a pod's interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceTraffic {
    /// The host end.
    pub name: String,
    pub from_pod: Packets,
    pub to_pod: Packets,
}

/// The most flows of one question.
pub const ASKED_MAX: usize = 256;
/// How long a command waits until the maps have followed.
const FOLLOWED: Duration = Duration::from_secs(5);

// === impl FastPathReport ===

impl FastPathReport {
    pub const SCHEMA: u32 = 1;
}

// === impl Signal ===

impl Signal {
    /// What the fast path does with these flows. Blocks for some milliseconds.
    pub(crate) fn report(&self, request: &FastPathRequest) -> Result<FastPathReport, (StatusCode, String)> {
        if request.flows.len() > ASKED_MAX {
            return Err((StatusCode::BAD_REQUEST, format!("a question has at most {ASKED_MAX} flows")));
        }
        let view = self.view();
        let of_interface = |(name, traffic): (String, russet_overlay::fast_path::Traffic)| InterfaceTraffic {
            name,
            from_pod: traffic.from_pod.into(),
            to_pod: traffic.to_pod.into(),
        };
        Ok(FastPathReport {
            schema: FastPathReport::SCHEMA,
            setting: view.mode().to_string(),
            off: view.off(),
            flows: view.taken(&request.flows),
            interfaces: view.traffic().into_iter().map(of_interface).collect(),
        })
    }

    /// Has the kernel's path carry what a command names, for a while. Blocks until it does.
    pub(crate) fn pause(&self, request: &PauseRequest) -> Result<PauseReport, (StatusCode, String)> {
        let view = self.view();
        let is_on = view.observer().is_some() && view.off().is_none();
        let pauses = view.pauses();
        let changed = pauses.take(request, Instant::now());
        let changed = changed.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error))?;
        if let Some(version) = changed.filter(|_| is_on) {
            self.pods_changed();
            if request.for_ms > 0 && !pauses.wait(version, FOLLOWED) {
                let error = format!("the fast path was not paused within {FOLLOWED:?}");
                return Err((StatusCode::SERVICE_UNAVAILABLE, error));
            }
        }
        Ok(PauseReport { schema: PauseReport::SCHEMA, is_on })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_fast_path_a_pause_is_no_error_and_is_taken_for_one_that_comes() {
        let signal = Signal::default();
        let request = PauseRequest { id: 1, interfaces: [7].into(), for_ms: 1000, ..PauseRequest::default() };
        assert!(!signal.pause(&request).unwrap().is_on);
        assert_eq!(signal.view().pauses().wanted(Instant::now()).0.interfaces, [7].into());
        let report = signal.report(&FastPathRequest::default()).unwrap();
        assert_eq!((report.setting.as_str(), report.off.is_some()), ("off", true));
        let ends =
            Ends { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), protocol: 6, port: 1 };
        assert!(signal.report(&FastPathRequest { flows: vec![ends; ASKED_MAX + 1] }).is_err());
    }
}
