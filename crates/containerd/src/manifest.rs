//! The parts of an image, by a registry's manifest: OCI's formats and Docker's, which differ only
//! in their names.

use serde::Deserialize;

use crate::api::Descriptor;
use crate::connection::cut;
use crate::reference::is_digest;

/// A parsed manifest, or a list of manifests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Manifest {
    Image {
        /// The configuration, which has the command.
        config: Descriptor,
        /// The layers of its file system, the lowest first.
        layers: Vec<Descriptor>,
    },
    /// Of several platforms; this is the one of this machine.
    Index(Descriptor),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: Option<u32>,
    config: Option<Described>,
    layers: Option<Vec<Described>>,
    manifests: Option<Vec<Described>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: i64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// The limit of overlay file systems.
const LAYERS_MAX: usize = 127;

/// The value of the Accept header.
pub(crate) fn accepted() -> String {
    [INDEX, LIST, OCI, DOCKER].join(", ")
}

/// The media type of a manifest in the content store: the registry's, if it is a known one.
pub(crate) fn media_type(said: &str, manifest: &Manifest) -> String {
    let known = match manifest {
        Manifest::Index(_) => [INDEX, LIST],
        Manifest::Image { .. } => [OCI, DOCKER],
    };
    known.iter().find(|known| **known == said).unwrap_or(&known[0]).to_string()
}

// === impl Manifest ===

impl Manifest {
    /// Parses one by its members, whatever its media type is.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document: Document =
            // serde's message may repeat secret contents.
            serde_json::from_slice(bytes)
                .map_err(|error| format!("it has no manifest: {}", cut(&error.to_string())))?;
        if document.schema_version != Some(2) {
            return Err("its manifest is of a version other than 2".to_owned());
        }
        match (document.manifests, document.config, document.layers) {
            (Some(manifests), _, _) => ours(manifests).map(Self::Index),
            (None, Some(config), Some(layers)) if layers.len() <= LAYERS_MAX => {
                let layers: Result<Vec<_>, _> = layers.into_iter().map(layer).collect();
                Ok(Self::Image { config: config.checked()?, layers: layers? })
            }
            (None, Some(_), Some(_)) => Err(format!("it has more than {LAYERS_MAX} layers")),
            _ => Err("its manifest has neither config and layers nor manifests".to_owned()),
        }
    }
}

// === impl Described ===

impl Described {
    fn checked(self) -> Result<Descriptor, String> {
        let Self { media_type, digest, size, .. } = self;
        if !is_digest(&digest) || size < 0 {
            return Err(format!("{digest:.100?} of {size} bytes is no part of an image"));
        }
        Ok(Descriptor { media_type, digest, size })
    }
}

fn ours(manifests: Vec<Described>) -> Result<Descriptor, String> {
    let architecture = architecture();
    let fits = |it: &Described| {
        it.platform.as_ref().is_some_and(|it| it.os == "linux" && it.architecture == architecture)
    };
    let found = manifests.into_iter().find(fits);
    found.ok_or_else(|| format!("there is none for linux/{architecture}"))?.checked()
}

fn layer(described: Described) -> Result<Descriptor, String> {
    let descriptor = described.checked()?;
    let of_ours = ["application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"];
    if of_ours.iter().any(|known| descriptor.media_type.starts_with(known)) {
        return Ok(descriptor);
    }
    Err(format!("a layer of it is {:.100?}, which is not to be had from a registry", descriptor.media_type))
}

/// The architecture under Go's name.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: char) -> String {
        format!("sha256:{}", letter.to_string().repeat(64))
    }

    #[test]
    fn of_a_list_the_image_for_this_machine_is_taken() {
        let of = |os: &str, architecture: &str, letter| {
            serde_json::json!({"mediaType": OCI, "digest": digest(letter), "size": 7,
                "platform": {"os": os, "architecture": architecture}})
        };
        let list = |manifests: Vec<serde_json::Value>| {
            Manifest::parse(
                serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string().as_bytes(),
            )
        };
        let all = vec![
            of("windows", architecture(), 'a'),
            of("linux", "pdp11", 'b'),
            of("linux", architecture(), 'c'),
        ];
        let Manifest::Index(found) = list(all).unwrap() else { panic!("a list") };
        assert_eq!(found.digest, digest('c'));
        let error = list(vec![of("linux", "pdp11", 'b')]).unwrap_err();
        assert_eq!(error, format!("there is none for linux/{}", architecture()));
    }

    #[test]
    fn an_invalid_manifest_is_refused_with_a_reason() {
        let layers = |media_type: &str, digest: &str, count: usize| {
            let layer = serde_json::json!({"mediaType": media_type, "digest": digest, "size": 1});
            serde_json::json!({"schemaVersion": 2, "config": layer, "layers": vec![layer.clone(); count]})
                .to_string()
        };
        let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
        assert!(Manifest::parse(layers(tar, &digest('a'), 2).as_bytes()).is_ok());
        for (text, says) in [
            ("", "it has no manifest"),
            ("{\"schemaVersion\": 1}", "a version other than 2"),
            ("{\"schemaVersion\": 2}", "neither config and layers nor manifests"),
            (&layers(tar, "sha256:../../x", 1), "is no part of an image"),
            (
                &layers("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", &digest('a'), 1),
                "not to be had",
            ),
            (&layers(tar, &digest('a'), 128), "more than 127 layers"),
        ] {
            let error = Manifest::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let long = serde_json::json!({"schemaVersion": "x".repeat(5000)}).to_string();
        let error = Manifest::parse(long.as_bytes()).unwrap_err();
        assert!(
            error.starts_with("it has no manifest: invalid type: string") && error.len() < 400,
            "{error}"
        );
    }
}
