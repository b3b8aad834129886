//! `POST /v1/flows` on the agent's socket.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use tokio::time::timeout;

use super::{FlowLog, FlowsReport, FlowsRequest, WAIT_MAX};

/// The flows, or an object with the error. An agent that enforces no policies has none.
pub(crate) async fn serve(State(flows): State<Option<FlowLog>>, body: Bytes) -> (StatusCode, Vec<u8>) {
    let Some(flows) = flows else {
        let error = "this agent enforces no policies (docs/policy.md says when)";
        return (StatusCode::NOT_FOUND, json!({ "error": error }).to_string().into_bytes());
    };
    let asked = match serde_json::from_slice(&body) {
        Ok(request) => serde_json::to_vec(&with_paths(&flows, flows.answer(&request).await).await),
        Err(error) => {
            return (StatusCode::BAD_REQUEST, json!({ "error": error.to_string() }).to_string().into_bytes());
        }
    };
    match asked {
        Ok(report) => (StatusCode::OK, report),
        Err(error) => {
            let error = json!({ "error": error.to_string() }).to_string().into_bytes();
            (StatusCode::INTERNAL_SERVER_ERROR, error)
        }
    }
}

/// The same with the path that each flow takes.
async fn with_paths(flows: &FlowLog, report: FlowsReport) -> FlowsReport {
    let (log, mut with) = (flows.clone(), report.clone());
    let found = tokio::task::spawn_blocking(move || {
        log.find_paths(&mut with.flows);
        with
    });
    found.await.unwrap_or(report)
}

impl FlowLog {
    /// What a client asks for, once there is something or it need not wait any more.
    async fn answer(&self, request: &FlowsRequest) -> FlowsReport {
        let wait = Duration::from_millis(request.wait_ms).min(WAIT_MAX);
        let mut news = self.0.last.subscribe();
        let Ok(_permit) = self.0.waiting.try_acquire() else { return self.report(request) };
        if !wait.is_zero() && !request.denied {
            self.want_sampled();
        }
        let is_there = async {
            loop {
                news.borrow_and_update();
                let report = self.report(request);
                if !report.flows.is_empty() || news.changed().await.is_err() {
                    return report;
                }
            }
        };
        match timeout(wait, is_there).await {
            Ok(report) => report,
            Err(_elapsed) => self.report(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{add, request};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_a_flow_and_not_for_ever() {
        let flows = FlowLog::default();
        let asked = FlowsRequest { wait_ms: u64::MAX, ..request(0) };
        assert!(flows.answer(&asked).await.flows.is_empty());
        let later = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            add(&flows, "10.1.0.2", 80);
        };
        let began = tokio::time::Instant::now();
        let (report, ()) = tokio::join!(flows.answer(&asked), later);
        assert_eq!((report.flows.len(), report.next), (1, 1));
        assert_eq!(began.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_pass_are_wanted_only_while_a_client_waits_for_them() {
        let flows = FlowLog::default();
        let wanted = || flows.sampled().borrow().is_some_and(|until| until > std::time::Instant::now());
        flows.answer(&request(0)).await;
        flows.answer(&FlowsRequest { wait_ms: 1, denied: true, ..request(0) }).await;
        assert!(!wanted());
        flows.answer(&FlowsRequest { wait_ms: 1, ..request(0) }).await;
        assert!(wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_above_the_limit_do_not_wait() {
        let flows = FlowLog::default();
        let asked = FlowsRequest { wait_ms: 10_000, ..request(0) };
        let waiting = (0..super::super::WAITING_MAX).map(|_| flows.answer(&asked));
        let mut waiting: Vec<_> = waiting.map(Box::pin).collect();
        for one in &mut waiting {
            assert!(timeout(Duration::from_millis(1), one).await.is_err());
        }
        let began = tokio::time::Instant::now();
        assert!(flows.answer(&asked).await.flows.is_empty());
        assert!(began.elapsed().is_zero());
    }

    #[tokio::test]
    async fn an_agent_without_policies_and_a_request_that_is_none_are_errors() {
        let (status, body) = serve(State(None), Bytes::from_static(b"{}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(String::from_utf8(body).unwrap().contains("enforces no policies"));
        for body in [&b""[..], b"7", b"{\"after\":-1}", b"\xff"] {
            let (status, _) = serve(State(Some(FlowLog::default())), Bytes::copy_from_slice(body)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body:?}");
        }
        let (status, body) = serve(State(Some(FlowLog::default())), Bytes::from_static(b"{}")).await;
        let report: FlowsReport = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, report.schema, report.flows.len()), (StatusCode::OK, 1, 0));
    }
}
