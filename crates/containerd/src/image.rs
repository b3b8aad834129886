//! An image that can be used: known to containerd, and unpacked. What is not there is pulled, and only that (cni-runtime.md section 3.1,
//! `ensureSandboxImageExists`).

use serde::Deserialize;

use crate::api::Descriptor;
use crate::connection::cut;
use crate::manifest::Manifest;
use crate::registry::MANIFEST_MAX_BYTES;
use crate::{CallError, Client, ImageError, Keyring, Reference, pull, unpack};

/// An image, ready to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its full name.
    pub name: String,
    /// The snapshot that its containers' file systems lie over.
    pub snapshot: String,
    /// What it is to execute.
    pub process: Process,
}

/// What an image executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The program and its arguments; never empty.
    pub args: Vec<String>,
    /// As in `PATH=/bin`.
    pub env: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The part of an image's config that matters.
#[derive(Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    config: Option<Execution>,
    rootfs: RootFs,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct Execution {
    user: String,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: String,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// What is read of an image before it is unpacked.
pub(crate) struct Parts {
    pub(crate) config_digest: String,
    pub(crate) diff_ids: Vec<String>,
    pub(crate) layers: Vec<Descriptor>,
    process: Process,
}

/// An image that is ready. None if it is not there, or not unpacked: then [`ensure`] has something to do, which may take long.
pub async fn find(
    client: &Client,
    image: &Reference,
    snapshotter: &str,
) -> Result<Option<Image>, ImageError> {
    let Some(target) = inspect(client, image).await? else { return Ok(None) };
    let parts = parts(client, image, target).await?;
    let snapshot = unpack::top(&parts);
    let is_there = client.has_snapshot(snapshotter, &snapshot).await.map_err(not_unpacked(image))?;
    Ok(is_there.then(|| Image { name: image.to_string(), snapshot, process: parts.process }))
}

/// Makes an image ready: pulls it if it is certainly missing, and unpacks it if it is not yet.
/// `keyring` is used only for a pull.
pub async fn ensure(
    client: &Client,
    image: &Reference,
    snapshotter: &str,
    keyring: impl FnOnce() -> Keyring,
) -> Result<Image, ImageError> {
    let target = match inspect(client, image).await? {
        Some(target) => target,
        None => pull::pull(client, image, &keyring()).await?,
    };
    let parts = parts(client, image, target).await?;
    let snapshot = unpack::unpack(client, snapshotter, &parts).await.map_err(not_unpacked(image))?;
    Ok(Image { name: image.to_string(), snapshot, process: parts.process })
}

async fn inspect(client: &Client, image: &Reference) -> Result<Option<Descriptor>, ImageError> {
    let name = image.to_string();
    client.image(&name).await.map_err(|source| ImageError::Inspect { image: name, source })
}

async fn parts(client: &Client, image: &Reference, target: Descriptor) -> Result<Parts, ImageError> {
    let read = Parts::read(client, target).await.map_err(not_unpacked(image))?;
    read.map_err(|reason| ImageError::Broken { image: image.to_string(), reason })
}

fn not_unpacked(image: &Reference) -> impl FnOnce(CallError) -> ImageError {
    move |source| ImageError::Unpack { image: image.to_string(), source }
}

// === impl Parts ===

impl Parts {
    /// Two kinds of failure: containerd's, and the image's own.
    async fn read(client: &Client, target: Descriptor) -> Result<Result<Self, String>, CallError> {
        let mut manifest = Manifest::parse(&client.read_blob(&target.digest, MANIFEST_MAX_BYTES).await?);
        if let Ok(Manifest::Index(ours)) = &manifest {
            manifest = Manifest::parse(&client.read_blob(&ours.digest, MANIFEST_MAX_BYTES).await?);
        }
        let (config, layers) = match manifest {
            Ok(Manifest::Image { config, layers }) => (config, layers),
            Ok(Manifest::Index(_)) => {
                return Ok(Err("its list of manifests leads to another list".to_owned()));
            }
            Err(reason) => return Ok(Err(reason)),
        };
        let bytes = client.read_blob(&config.digest, MANIFEST_MAX_BYTES).await?;
        Ok(Self::of(config.digest, &bytes, layers))
    }

    fn of(config_digest: String, config: &[u8], layers: Vec<Descriptor>) -> Result<Self, String> {
        let config: Config = serde_json::from_slice(config)
            .map_err(|error| format!("its config cannot be read: {}", cut(&error.to_string())))?;
        let diff_ids = config.rootfs.diff_ids;
        if diff_ids.len() != layers.len() || layers.is_empty() {
            return Err(format!("it has {} layers, and names {}", layers.len(), diff_ids.len()));
        }
        let process = config.config.unwrap_or_default().process()?;
        Ok(Self { config_digest, diff_ids, layers, process })
    }
}

// === impl Execution ===

impl Execution {
    fn process(self) -> Result<Process, String> {
        let (uid, gid) = user(&self.user)
            .ok_or_else(|| format!("it runs as {:.100?}; only numbers of users are understood", self.user))?;
        let args: Vec<String> =
            self.entrypoint.into_iter().flatten().chain(self.cmd.into_iter().flatten()).collect();
        if args.is_empty() {
            return Err("it says nothing that could be executed".to_owned());
        }
        let cwd = if self.working_dir.is_empty() { "/".to_owned() } else { self.working_dir };
        Ok(Process { args, env: self.env.unwrap_or_default(), cwd, uid, gid })
    }
}

/// `65535:65535`, `65535`, or nothing for root.
fn user(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse().ok() };
    Some((number(user)?, number(group)?))
}

/// `sha256:...` of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(config: &serde_json::Value, layers: usize) -> Result<Process, String> {
        let layers = vec![Descriptor::default(); layers];
        Parts::of("sha256:x".into(), config.to_string().as_bytes(), layers).map(|parts| parts.process)
    }

    #[test]
    fn an_images_config_says_what_is_executed() {
        let config = serde_json::json!({
            "config": {"User": "65535:65534", "Env": ["A=b"], "Entrypoint": ["/pause"], "Cmd": ["-v"], "WorkingDir": "/w"},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:a"]},
        });
        let process = parts(&config, 1).unwrap();
        assert_eq!((process.args, process.env), (vec!["/pause".into(), "-v".into()], vec!["A=b".into()]));
        assert_eq!((process.cwd.as_str(), process.uid, process.gid), ("/w", 65535, 65534));
        assert_eq!(parts(&config, 2).unwrap_err(), "it has 2 layers, and names 1");
        let of = |execution: serde_json::Value| {
            parts(&serde_json::json!({"config": execution, "rootfs": {"diff_ids": ["sha256:a"]}}), 1)
        };
        let bare = of(serde_json::json!({"Cmd": ["/a"], "Env": null})).unwrap();
        assert_eq!((bare.cwd.as_str(), bare.uid, bare.gid), ("/", 0, 0));
        assert!(
            of(serde_json::json!({"Cmd": ["/a"], "User": "nobody"})).unwrap_err().contains("only numbers")
        );
        let long = parts(&serde_json::json!({"config": {"User": {}}, "rootfs": "x".repeat(5000)}), 1);
        assert!(long.unwrap_err().len() < 400);
        let long = parts(&serde_json::json!({"rootfs": "x".repeat(5000)}), 1).unwrap_err();
        assert!(
            long.starts_with("its config cannot be read: invalid type: string") && long.len() < 400,
            "{long}"
        );
        assert_eq!(of(serde_json::json!(null)).unwrap_err(), "it says nothing that could be executed");
    }
}
