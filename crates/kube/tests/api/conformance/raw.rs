//! Requests as they are, without the client: for parameters that it does not send.

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header;
use russet_http::client::Connection;
use russet_http::tls::{self, Trust};
use serde_json::Value;
use tokio::net::TcpStream;

/// A server's address and a token.
pub struct Raw {
    address: String,
    token: String,
    /// PEM of the authority of its certificate; without one it has none.
    authority: Option<Vec<u8>>,
}

/// An answer that is complete.
pub struct Answer {
    pub code: u16,
    pub body: String,
}

// === impl Raw ===

impl Raw {
    pub fn plain(address: &str, token: &str) -> Self {
        Self { address: address.to_owned(), token: token.to_owned(), authority: None }
    }

    pub fn tls(address: &str, token: &str, authority: &[u8]) -> Self {
        Self { authority: Some(authority.to_owned()), ..Self::plain(address, token) }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_while(path, || ()).await
    }

    /// The same for a watch, with something that happens once it is open.
    pub async fn get_while(&self, path: &str, happens: impl FnOnce()) -> Answer {
        self.send("GET", path, "", String::new(), happens).await
    }

    /// A strategic merge patch.
    pub async fn patch(&self, path: &str, patch: &Value) -> Answer {
        self.send("PATCH", path, "application/strategic-merge-patch+json", patch.to_string(), || ()).await
    }

    /// A patch that is a list of operations.
    pub async fn patch_by_operations(&self, path: &str, operations: &Value) -> Answer {
        self.send("PATCH", path, "application/json-patch+json", operations.to_string(), || ()).await
    }

    /// Sends a request, and waits for the end of its answer, which for a watch is the server's.
    async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: String,
        happens: impl FnOnce(),
    ) -> Answer {
        let mut connection = self.connect().await;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.address)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body.into()));
        let response = connection.send(request.unwrap()).await.unwrap();
        let code = response.status().as_u16();
        happens();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { code, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let Some(pem) = &self.authority else { return Connection::handshake(stream).await.unwrap() };
        let trust = Trust::Authorities(tls::authorities(pem).unwrap());
        let connector = tls::connector(trust, None, b"http/1.1").unwrap();
        let name = tls::server_name("127.0.0.1").unwrap();
        Connection::handshake(connector.connect(name, stream).await.unwrap()).await.unwrap()
    }
}

// === impl Answer ===

impl Answer {
    /// The object in the body.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The events of a watch, as type and object.
    #[track_caller]
    pub fn events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.code, 200, "{}", self.body);
        let lines = self.body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| (line["type"].as_str().unwrap().to_owned(), line["object"].clone())).collect()
    }

    /// The fields that a refusal names. Kubernetes 1.34 names some of them twice.
    #[track_caller]
    pub fn causes(&self) -> Vec<String> {
        let status = self.json();
        let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
        let mut fields: Vec<String> =
            causes.iter().filter_map(|cause| cause["field"].as_str().map(str::to_owned)).collect();
        fields.dedup();
        fields
    }
}
