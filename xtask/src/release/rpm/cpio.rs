//! The archive in a .rpm: cpio's format `newc`, whose fields are hexadecimal digits.

use super::Item;

/// Names and contents begin at multiples of this.
const ALIGNMENT: usize = 4;
const END: &str = "TRAILER!!!";

/// The items in their order, which is that of the header.
pub fn archive(items: &[Item], seconds: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let inode = at + 1;
        append(&mut archive, inode, &format!("./{}", item.path), item.mode, seconds, &item.content);
    }
    append(&mut archive, 0, END, 0, 0, &[]);
    archive
}

fn append(archive: &mut Vec<u8>, inode: usize, name: &str, mode: u32, seconds: u64, content: &[u8]) {
    // Inode, mode, owner, group, links, time, size, four numbers of devices, length of the name, checksum.
    let (size, name_bytes) = (content.len(), name.len() + 1);
    let fields =
        [inode as u64, u64::from(mode), 0, 0, 1, seconds, size as u64, 0, 0, 0, 0, name_bytes as u64, 0];
    archive.extend(b"070701");
    fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
    archive.extend(name.bytes().chain([0]));
    archive.resize(archive.len().next_multiple_of(ALIGNMENT), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(ALIGNMENT), 0);
}
