//! Pulls from a registry into containerd: every blob under its digest, with labels for its
//! references, and the image's name last.

use bytes::Bytes;

use crate::api::Descriptor;
use crate::content::Labels;
use crate::image::digest_of;
use crate::manifest::{self, Manifest};
use crate::registry::{Fetched, MANIFEST_MAX_BYTES, Registry};
use crate::{CallError, Client, Credential, ImageError, Keyring, PullError, Reference, RegistryError};

/// One pull with one credential.
struct Attempt<'a> {
    client: &'a Client,
    registry: Registry<'a>,
    image: &'a Reference,
    who: String,
    /// A unique prefix for the names of incomplete objects.
    mark: &'a str,
}

const REFERS: &str = "containerd.io/gc.ref.content";
/// The limit of all layers together, in their compressed form: what containerd unpacks from them is
/// not limited. A sandbox needs an image of less than a megabyte; a malicious registry must not
/// fill the node's disk with its blobs.
const LAYERS_MAX_BYTES: i64 = 1024 * 1024 * 1024;
/// Parts of a body are written when they have this size together: a call for each would be slower
/// than the network.
const PART_BYTES: usize = 512 * 1024;

/// Pulls an image: with every credential for it until one works, or anonymously if there is none.
pub(crate) async fn pull(
    client: &Client,
    image: &Reference,
    keyring: &Keyring,
) -> Result<Descriptor, ImageError> {
    let credentials = keyring.matching(image);
    let anonymous = credentials.is_empty().then_some(None);
    let mut attempts = Vec::new();
    for credential in anonymous.into_iter().chain(credentials.iter().map(Some)) {
        match attempt(client, image, credential).await {
            Ok(target) => {
                tracing::info!(%image, digest = target.digest, "image pulled");
                return Ok(target);
            }
            Err(error) => attempts.push(error),
        }
    }
    Err(ImageError::Pull { image: image.to_string(), attempts })
}

async fn attempt(
    client: &Client,
    image: &Reference,
    credential: Option<&Credential>,
) -> Result<Descriptor, PullError> {
    let work = async |leased: Client, mark: String| {
        let who = credential.map_or_else(|| "anonymous".to_owned(), Credential::to_string);
        let registry = Registry::new(image, credential);
        let attempt = Attempt { client: &leased, registry, image, who, mark: &mark };
        // On the heap: a caller would hold all of it on its stack, and a daemon's thread has 512
        // KiB.
        Box::pin(attempt.run()).await
    };
    leased(client, work).await
}

/// Runs `work` under a lease of its own; afterwards, objects without references may be collected.
pub(crate) async fn leased<T, E: From<CallError>>(
    client: &Client,
    work: impl AsyncFnOnce(Client, String) -> Result<T, E>,
) -> Result<T, E> {
    let mark = format!("russet-{}", random());
    client.create_lease(&mark).await?;
    let done = work(client.leased(&mark)?, mark.clone()).await;
    // Otherwise it expires within the hour.
    if let Err(error) = client.delete_lease(&mark).await {
        tracing::debug!(%error, "a lease is left");
    }
    done
}

// === impl Attempt ===

impl Attempt<'_> {
    async fn run(mut self) -> Result<Descriptor, PullError> {
        let root = self.manifest(self.image.version()).await?;
        let mut manifest = self.parse(&root)?;
        let mut index = None;
        let mut of_image = root;
        if let Manifest::Index(ours) = &manifest {
            let child = self.manifest(&ours.digest).await?;
            let parsed = self.parse(&child)?;
            index = Some((std::mem::replace(&mut of_image, child), manifest));
            manifest = parsed;
        }
        let Manifest::Image { config, layers } = &manifest else {
            return Err(self.wrong("its list of manifests leads to another list".to_owned()));
        };
        check_size(layers).map_err(|reason| self.wrong(reason))?;
        for layer in layers {
            self.copy(layer).await?;
        }
        self.config(config).await?;
        let mut refers = Labels::from([(format!("{REFERS}.config"), config.digest.clone())]);
        refers.extend(
            layers.iter().enumerate().map(|(at, it)| (format!("{REFERS}.l.{at}"), it.digest.clone())),
        );
        let mut target = self.store(&of_image, &manifest, refers).await?;
        if let Some((list, parsed)) = &index {
            let refers = Labels::from([(format!("{REFERS}.m.0"), of_image.digest.clone())]);
            target = self.store(list, parsed, refers).await?;
        }
        self.client.create_image(&self.image.to_string(), target.clone()).await?;
        Ok(target)
    }

    async fn manifest(&mut self, version: &str) -> Result<Fetched, PullError> {
        let fetched = self.registry.manifest(version).await.map_err(|error| self.refused(error))?;
        match self.image.digest() {
            Some(wanted) if version == self.image.version() && wanted != fetched.digest => {
                Err(self.wrong(format!("its manifest is {}", fetched.digest)))
            }
            _ => Ok(fetched),
        }
    }

    fn parse(&self, fetched: &Fetched) -> Result<Manifest, PullError> {
        Manifest::parse(&fetched.bytes).map_err(|reason| self.wrong(reason))
    }

    /// Copies a layer as a stream. containerd compares its digest.
    async fn copy(&mut self, layer: &Descriptor) -> Result<(), PullError> {
        let name = format!("{}-{}", self.mark, layer.digest);
        let Some(mut writer) = self.client.write_blob(&name, &layer.digest, layer.size).await? else {
            return Ok(());
        };
        let mut blob = self.registry.blob(&layer.digest).await.map_err(|error| self.refused(error))?;
        let (mut gathered, mut total) = (Vec::new(), 0_i64);
        while let Some(part) = blob.part().await.map_err(|error| self.refused(error))? {
            total = total.saturating_add(i64::try_from(part.len()).unwrap_or(i64::MAX));
            if total > layer.size {
                return Err(self.refused(blob.wrong(format!("it is larger than {} bytes", layer.size))));
            }
            gathered.extend_from_slice(&part);
            if gathered.len() >= PART_BYTES {
                writer.write(Bytes::from(std::mem::take(&mut gathered))).await?;
            }
        }
        if total < layer.size {
            return Err(self.refused(blob.wrong(format!("it ends after {total} of {} bytes", layer.size))));
        }
        if !gathered.is_empty() {
            writer.write(Bytes::from(gathered)).await?;
        }
        Ok(writer.commit(Labels::new()).await?)
    }

    async fn config(&mut self, config: &Descriptor) -> Result<(), PullError> {
        let blob = self.registry.blob(&config.digest).await.map_err(|error| self.refused(error))?;
        let bytes = blob.whole(MANIFEST_MAX_BYTES).await.map_err(|error| self.refused(error))?;
        let digest = digest_of(&bytes);
        if digest != config.digest {
            return Err(self.wrong(format!("{} came as {digest}", config.digest)));
        }
        self.put(&digest, bytes, Labels::new()).await
    }

    async fn store(
        &self,
        fetched: &Fetched,
        manifest: &Manifest,
        refers: Labels,
    ) -> Result<Descriptor, PullError> {
        let size = i64::try_from(fetched.bytes.len()).unwrap_or(i64::MAX);
        self.put(&fetched.digest, fetched.bytes.clone(), refers).await?;
        let media_type = manifest::media_type(&fetched.media_type, manifest);
        Ok(Descriptor { media_type, digest: fetched.digest.clone(), size })
    }

    /// An existing one may be another client's, with other labels: its references are added again.
    async fn put(&self, digest: &str, bytes: Vec<u8>, labels: Labels) -> Result<(), PullError> {
        let name = format!("{}-{digest}", self.mark);
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        match self.client.write_blob(&name, digest, size).await? {
            Some(mut writer) => {
                writer.write(Bytes::from(bytes)).await?;
                writer.commit(labels).await?;
            }
            None => {
                for (key, value) in labels {
                    self.client.label_blob(digest, key, &value).await?;
                }
            }
        }
        Ok(())
    }

    fn refused(&self, source: RegistryError) -> PullError {
        PullError::Registry { who: self.who.clone(), source }
    }

    fn wrong(&self, reason: String) -> PullError {
        self.refused(RegistryError::Answer { url: self.image.to_string(), reason })
    }
}

/// Whether the layers may be copied. Of each layer at most the manifest's size is read.
fn check_size(layers: &[Descriptor]) -> Result<(), String> {
    let bytes = layers.iter().fold(0_i64, |sum, layer| sum.saturating_add(layer.size));
    if bytes > LAYERS_MAX_BYTES {
        return Err(format!("its layers have {bytes} bytes together, which is more than {LAYERS_MAX_BYTES}"));
    }
    Ok(())
}

/// A random, unique text.
pub(crate) fn random() -> String {
    let mut bytes = [0_u8; 8];
    // The kernel's generator; it fails on no kernel of this decade, and then only concurrent pulls
    // with equal names would fail.
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_would_fill_a_disk_together_are_refused() {
        let of = |sizes: &[i64]| {
            let layers: Vec<_> =
                sizes.iter().map(|size| Descriptor { size: *size, ..Descriptor::default() }).collect();
            check_size(&layers)
        };
        assert_eq!(of(&[]), Ok(()));
        assert_eq!(of(&[LAYERS_MAX_BYTES - 1, 1]), Ok(()));
        let says = "its layers have 1073741825 bytes together, which is more than 1073741824";
        assert_eq!(of(&[LAYERS_MAX_BYTES, 1]), Err(says.to_owned()));
        assert!(of(&[i64::MAX, i64::MAX]).is_err());
    }
}
