//! A registry of images on loopback, in plain HTTP (the OCI distribution specification): open, with
//! a password, or with a token that it issues for a password. It records all requests.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::{require_tool, run};

/// The required credentials.
#[derive(Debug, Clone, Default)]
pub enum Access {
    /// None.
    #[default]
    Open,
    /// This user name and password.
    Basic(&'static str, &'static str),
    /// A token, which is issued for this user name and password.
    Bearer(&'static str, &'static str),
}

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The path, as in `/v2/pause/manifests/1`.
    pub path: String,
    /// `user:password` or `token`, if the request had one.
    pub by: Option<String>,
    /// The answer's status.
    pub status: u16,
}

/// A registry; dropping it ends it.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    inside: Arc<Mutex<Inside>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Inside {
    access: Access,
    /// Media type and bytes under the path.
    content: BTreeMap<String, (String, Vec<u8>)>,
    asked: Vec<Asked>,
    /// Blobs are on another server, to which no credentials must be sent.
    sends_on: bool,
    ends: bool,
}

struct Request {
    path: String,
    authorization: Option<String>,
    wants_body: bool,
}

struct Reply {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const TOKEN: &str = "a-token-of-the-registry";

// === impl Registry ===

impl Registry {
    /// Starts an empty one on a port of loopback that is free.
    pub fn start(access: Access) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inside = Arc::new(Mutex::new(Inside { access, ..Inside::default() }));
        let shared = inside.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.lock().unwrap_or_else(PoisonError::into_inner).ends {
                    return;
                }
                // Who goes away in the middle has had enough.
                let _ = answer(&stream, &shared, address);
            }
        });
        Self { address, inside, thread: Some(thread) }
    }

    /// Puts an image of one program in, whose arguments are these, and returns its name. It is in a list with one for another platform.
    pub fn push(&self, repository: &str, tag: &str, program: &str, args: &[&str]) -> String {
        let (layer, diff_id) = layer(program);
        let entrypoint: Vec<String> =
            [format!("/{program}")].into_iter().chain(args.iter().map(ToString::to_string)).collect();
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": {"Entrypoint": entrypoint, "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        });
        let config = self.put_blob(
            repository,
            config.to_string().into_bytes(),
            "application/vnd.oci.image.config.v1+json",
        );
        let layer = self.put_blob(repository, layer, "application/vnd.oci.image.layer.v1.tar+gzip");
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
        let manifest = manifest.to_string().into_bytes();
        let mut ours = described(&manifest, MANIFEST);
        self.put(
            &format!("/v2/{repository}/manifests/{}", ours["digest"].as_str().unwrap()),
            MANIFEST,
            manifest,
        );
        let other = json!({"mediaType": MANIFEST, "digest": format!("sha256:{}", "0".repeat(64)), "size": 1,
            "platform": {"os": "linux", "architecture": "pdp11"}});
        ours["platform"] = json!({"os": "linux", "architecture": architecture()});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, ours]});
        let index = index.to_string().into_bytes();
        for version in [&digest(&index), tag] {
            self.put(&format!("/v2/{repository}/manifests/{version}"), INDEX, index.clone());
        }
        format!("{}/{repository}:{tag}", self.address)
    }

    /// Flips a bit of each layer.
    pub fn damage_layers(&self) {
        let mut inside = self.inside();
        let layers = inside.content.values_mut().filter(|(media_type, _)| media_type.ends_with("gzip"));
        layers.for_each(|(_, bytes)| *bytes.last_mut().unwrap() ^= 1);
    }

    /// From now on it sends those who want blobs elsewhere.
    pub fn send_on(&self) {
        self.inside().sends_on = true;
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked since the last time that this was called.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.inside().asked)
    }

    fn put_blob(&self, repository: &str, bytes: Vec<u8>, media_type: &str) -> Value {
        let described = described(&bytes, media_type);
        let digest = described["digest"].as_str().unwrap();
        self.put(&format!("/v2/{repository}/blobs/{digest}"), media_type, bytes);
        described
    }

    fn put(&self, path: &str, media_type: &str, bytes: Vec<u8>) {
        self.inside().content.insert(path.to_owned(), (media_type.to_owned(), bytes));
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.inside().ends = true;
        // Its thread checks this on the next connection.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Inside ===

impl Inside {
    fn reply(&self, request: &Request, address: SocketAddr) -> Reply {
        let path = request.path.as_str();
        if let Some(blob) = path.strip_prefix("/elsewhere") {
            return match request.authorization {
                None => self.content(blob),
                Some(_) => Reply::of(400, "it received credentials"),
            };
        }
        if path.starts_with("/token?") {
            return match &self.access {
                Access::Bearer(user, password) if request.by() == Some(format!("{user}:{password}")) => {
                    Reply::of(200, &json!({"token": TOKEN}).to_string())
                }
                _ => Reply::of(401, "wrong name or password"),
            };
        }
        let (wanted, challenge) = match &self.access {
            Access::Open => (None, String::new()),
            Access::Basic(user, password) => {
                (Some(format!("{user}:{password}")), "Basic realm=\"test\"".to_owned())
            }
            Access::Bearer(..) => {
                let challenge = format!("Bearer realm=\"http://{address}/token\",service=\"test\"");
                (Some(TOKEN.to_owned()), challenge)
            }
        };
        if wanted.is_some() && request.by() != wanted {
            let headers = format!("WWW-Authenticate: {challenge}\r\n");
            return Reply { headers, ..Reply::of(401, "who are you?") };
        }
        if self.sends_on && path.contains("/blobs/") {
            return Reply { headers: format!("Location: /elsewhere{path}\r\n"), ..Reply::of(307, "") };
        }
        self.content(path)
    }

    fn content(&self, path: &str) -> Reply {
        match self.content.get(path) {
            Some((media_type, bytes)) => {
                Reply { status: 200, headers: format!("Content-Type: {media_type}\r\n"), body: bytes.clone() }
            }
            None => Reply::of(404, "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}"),
        }
    }
}

// === impl Request ===

impl Request {
    fn read(stream: &TcpStream) -> std::io::Result<Option<Self>> {
        let mut lines = BufReader::new(stream).lines();
        let Some(first) = lines.next().transpose()? else { return Ok(None) };
        let mut words = first.split(' ');
        let (Some(method @ ("GET" | "HEAD")), Some(path)) = (words.next(), words.next()) else {
            return Ok(None);
        };
        let mut authorization = None;
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("authorization")
            {
                authorization = Some(value.trim().to_owned());
            }
        }
        Ok(Some(Self { path: path.to_owned(), authorization, wants_body: method == "GET" }))
    }

    fn by(&self) -> Option<String> {
        let (scheme, rest) = self.authorization.as_ref()?.split_once(' ')?;
        match scheme {
            "Basic" => String::from_utf8(STANDARD.decode(rest).ok()?).ok(),
            _ => Some(rest.to_owned()),
        }
    }
}

// === impl Reply ===

impl Reply {
    fn of(status: u16, text: &str) -> Self {
        Self { status, headers: String::new(), body: text.as_bytes().to_vec() }
    }
}

fn answer(mut stream: &TcpStream, inside: &Mutex<Inside>, address: SocketAddr) -> std::io::Result<()> {
    let Some(request) = Request::read(stream)? else { return Ok(()) };
    let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
    let Reply { status, headers, body } = inside.reply(&request, address);
    inside.asked.push(Asked { path: request.path.clone(), by: request.by(), status });
    drop(inside);
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
    if request.wants_body { stream.write_all(&body) } else { Ok(()) }
}

/// A compressed archive of one program, and the digest of what it is without compression.
fn layer(program: &str) -> (Vec<u8>, String) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("root")).unwrap();
    std::fs::copy(require_tool(program), directory.path().join("root").join(program)).unwrap();
    run("tar", &["-C", &at("root"), "-cf", &at("layer.tar"), program]);
    let digest = digest(&std::fs::read(at("layer.tar")).unwrap());
    run("gzip", &["-n", &at("layer.tar")]);
    (std::fs::read(at("layer.tar.gz")).unwrap(), digest)
}

fn described(bytes: &[u8], media_type: &str) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}
