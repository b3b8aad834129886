//! A disk whose power can be cut: an ext4 file system in an image, mounted somewhere below a test's own directory.
//!
//! The cut is the kernel's own (`EXT4_IOC_SHUTDOWN` without flushing the journal, as xfstests has it): from that moment on nothing reaches the image, so that
//! what was synced is there afterwards, and of what was not there is what the file system happened to have written. When the power comes back the
//! image is mounted again, and the file system's journal replayed, as after a real cut. What a disk's own cache loses in spite of a flush is not shown.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::run;

/// The disk; dropping it deletes it, with its contents.
pub struct Disk {
    dir: TempDir,
    place: PathBuf,
    /// How often the power came on.
    boots: u32,
}

/// Room for a few stores.
const SIZE: &str = "64M";
/// `EXT4_IOC_SHUTDOWN` of fs/ext4/ext4.h: `_IOR('X', 125, __u32)`.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// `EXT4_GOING_FLAGS_NOLOGFLUSH` of the same file.
const NO_LOG_FLUSH: u32 = 2;

// === impl Disk ===

impl Disk {
    /// An empty disk at `place`, a directory, with options of ext4's.
    pub fn new(place: &Path, options: &str) -> Self {
        let dir = tempfile::tempdir().expect("make a directory");
        let disk = Self { dir, place: place.to_owned(), boots: 0 };
        run("truncate", &["-s", SIZE, &disk.image()]);
        run("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", &disk.image()]);
        disk.mount(options);
        disk
    }

    fn image(&self) -> String {
        self.dir.path().join(format!("disk{}", self.boots)).display().to_string()
    }

    fn mount(&self, options: &str) {
        run("mount", &["-o", &format!("loop,{options}"), &self.image(), &self.place.display().to_string()]);
    }

    /// Mounts the image, and replays the file system's journal.
    ///
    /// On a copy: another mount namespace may still hold the file system whose power was cut, and
    /// the kernel would mount the same one again.
    pub fn power_on(&mut self, options: &str) {
        let before = self.image();
        self.boots += 1;
        run("cp", &["--sparse=always", &before, &self.image()]);
        std::fs::remove_file(before).expect("remove the old image");
        self.mount(options);
    }

    /// From now on nothing reaches the disk, and every access fails.
    pub fn cut_power(&self) {
        let top = File::open(&self.place).expect("open the disk's top directory");
        let flags = NO_LOG_FLUSH;
        // SAFETY: the descriptor is open, and the kernel reads one u32 through the pointer.
        let done = unsafe { libc::ioctl(top.as_raw_fd(), EXT4_IOC_SHUTDOWN as _, &raw const flags) };
        assert_eq!(done, 0, "EXT4_IOC_SHUTDOWN: {}", std::io::Error::last_os_error());
    }

    /// Unmounts it; no file may be open there any more.
    pub fn power_off(&self) {
        run("umount", &[&self.place.display().to_string()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It may be off, and a process of a failed test may still use it.
        let _ = std::process::Command::new("umount").args(["--lazy", "--quiet"]).arg(&self.place).status();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    #[ignore = "root: mounts; kernel: ext4, loop; tool: mkfs.ext4"]
    fn what_was_synced_outlives_a_power_cut_and_what_was_not_does_not() {
        let place = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(place.path(), "defaults");
        let write = |name: &str, sync: bool| {
            let mut file = File::create(place.path().join(name)).unwrap();
            file.write_all(&[7; 10_000]).unwrap();
            if sync {
                file.sync_all().unwrap();
            }
        };
        write("synced", true);
        write("not", false);
        disk.cut_power();
        assert!(std::fs::write(place.path().join("later"), "x").is_err());
        disk.power_off();
        disk.power_on("defaults");
        assert_eq!(std::fs::read(place.path().join("synced")).unwrap(), [7; 10_000]);
        assert_ne!(std::fs::read(place.path().join("not")).unwrap_or_default(), [7; 10_000]);
        assert!(!place.path().join("later").exists());
    }
}
