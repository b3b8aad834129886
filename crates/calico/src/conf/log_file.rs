//! The log file that a configuration of Calico names, rotated as by the library that the Go plugins
//! use: a full file is renamed with a timestamp, and only a limited number of rotated files up to a
//! maximum age is kept.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use russet_model::time;
use tokio::sync::Semaphore;

use super::LogSettings;

/// A file system that hangs must not delay a pod's ADD for long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// One writer at a time: a write that hangs keeps its thread, and the writes behind it must not
/// occupy one each.
static WRITER: Semaphore = Semaphore::const_new(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Appends `text`. Errors are only logged, because they must not fail the request.
pub(super) async fn append(settings: &LogSettings, text: String) {
    append_with_limit(&WRITER, WRITE_TIMEOUT, settings, text).await;
}

async fn append_with_limit(
    writer: &'static Semaphore,
    timeout: Duration,
    settings: &LogSettings,
    text: String,
) {
    let Some(path) = settings.file.clone().filter(|_| !text.is_empty()) else { return };
    let (settings, shown) = (settings.clone(), path.display().to_string());
    let writing = async move {
        let permit = writer.acquire().await.map_err(io::Error::other)?;
        let work = move || {
            let _permit = permit;
            write(&path, &settings, &text, SystemTime::now())
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    };
    let failed = match tokio::time::timeout(timeout, writing).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => format!("it took longer than {timeout:?}"),
    };
    tracing::warn!(file = shown, error = failed, "the log file could not be written");
}

fn write(path: &Path, settings: &LogSettings, text: &str, now: SystemTime) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if size > 0 && size + text.len() as u64 > settings.file_max_bytes {
        // Another plugin may have rotated the file first: then there is nothing to rename.
        match fs::rename(path, rotated_path(path, now)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => delete_old_rotated(path, settings, now),
        }
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    // In one write, so that lines of plugins that write at the same time stay whole.
    file.write_all(text.as_bytes())
}

/// `cni.log` becomes `cni-2026-01-02T15-04-05.678.log`.
fn rotated_path(path: &Path, now: SystemTime) -> PathBuf {
    let (stem, end) = parts(path);
    let millis = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_millis());
    let at = time::rfc3339(now).replace(':', "-").replace('Z', "");
    path.with_file_name(format!("{stem}-{at}.{millis:03}{end}"))
}

fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    (text(path.file_stem()), end)
}

/// File names contain the time, so that their order is the order of age.
fn delete_old_rotated(path: &Path, settings: &LogSettings, now: SystemTime) {
    let (stem, end) = parts(path);
    let is_rotated = |name: &str| {
        let time = name.strip_prefix(&format!("{stem}-")).and_then(|rest| rest.strip_suffix(&end));
        time.is_some_and(|time| {
            time.len() == "2026-01-02T15-04-05.678".len() && time.starts_with(|c: char| c.is_ascii_digit())
        })
    };
    let listed = path.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let mut rotated: Vec<PathBuf> = listed.map(|entry| entry.path()).collect();
    rotated.retain(|it| it.file_name().and_then(|name| name.to_str()).is_some_and(is_rotated));
    rotated.sort();
    rotated.reverse();
    for (index, old) in rotated.iter().enumerate() {
        let modified = fs::metadata(old).and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        if index >= settings.file_max_count as usize || age > DAY * settings.file_max_age_d {
            // A file that cannot be deleted is tried again at the next rotation.
            let _ = fs::remove_file(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_wiring::LogLevel;

    fn settings(file: PathBuf) -> LogSettings {
        let file = Some(file);
        LogSettings { level: LogLevel::Info, file, file_max_bytes: 20, file_max_age_d: 30, file_max_count: 2 }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_is_rotated_and_a_limited_number_is_kept() {
        // calico-cni.md section 1.3
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cni/cni.log");
        let settings = settings(path.clone());
        let begin = SystemTime::now();
        for second in 0..5 {
            write(&path, &settings, "fifteen letters\n", begin + Duration::from_secs(second)).unwrap();
        }
        let left = names(path.parent().unwrap());
        assert_eq!(left.len(), 3, "{left:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "fifteen letters\n");
        write(&path, &settings, "ab\n", begin).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "fifteen letters\nab\n");
    }

    #[test]
    fn rotated_files_are_deleted_by_age_and_other_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cni.log");
        for name in ["cni-2026-01-02T15-04-05.678.log", "cni-notes-of-an-operator.log", "cni.conf"] {
            fs::write(root.path().join(name), "x").unwrap();
        }
        fs::write(&path, "x".repeat(20)).unwrap();
        write(&path, &settings(path.clone()), "y", SystemTime::now() + DAY * 31).unwrap();
        let left = names(root.path());
        assert!(!left.iter().any(|name| name.starts_with("cni-2026-01-02")), "{left:?}");
        assert!(
            left.contains(&"cni-notes-of-an-operator.log".to_owned())
                && left.contains(&"cni.conf".to_owned())
        );
    }

    #[test]
    fn an_unwritable_log_file_does_not_fail_the_request() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(append(&settings("/proc/none/cni.log".into()), "line\n".into()));
    }

    #[test]
    fn a_hanging_log_file_occupies_only_one_thread() {
        static ONE: Semaphore = Semaphore::const_new(1);
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(2).build();
        let other = runtime.unwrap().block_on(async {
            for _ in 0..2 {
                append_with_limit(&ONE, Duration::from_millis(10), &settings(path.clone()), "line\n".into())
                    .await;
            }
            let other = tokio::time::timeout(WRITE_TIMEOUT, tokio::task::spawn_blocking(|| ())).await;
            // Opening the pipe for reading unblocks the writer, so that the runtime can end.
            OpenOptions::new().read(true).write(true).open(&path).unwrap();
            other
        });
        assert!(other.is_ok(), "no thread is left for others");
    }
}
