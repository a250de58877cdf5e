//! Lost stripes: stripes of an array with parity whose content a crash together with a lost member destroyed. Reading
//! them is an error until they are written again.

use crate::ArrayManager;
use braid_format::ArrayPart;
use braid_inventory::ReconcilerHandle;

impl ArrayManager {
    /// Reports what cannot be read of an array that is about to serve.
    pub(crate) fn report_unreadable(&self, name: &str, handle: &ReconcilerHandle, label: &ArrayPart) {
        let Some(what) = handle.unreadable(label).sentence() else { return };
        handle.note_unreadable_reported();
        let message = format!(
            "array {name}: {what}. They were being written when the array stopped, and a member that held a part of them has failed"
        );
        self.inventory.events().error("unreadable", message, &[("array", name)]);
    }

    /// Reports arrays whose unreadable blocks were all written again. Called periodically.
    pub fn watch_unreadable(&self) {
        let mended: Vec<String> = {
            let tables = self.inventory.read();
            let kept = tables.arrays.values().filter_map(|entry| Some((&entry.name, entry.active()?.reconciler()?)));
            kept.filter(|(_, handle)| handle.take_unreadable_repaired()).map(|(name, _)| name.clone()).collect()
        };
        for name in mended {
            let message = format!("array {name}: everything that could not be read has been written again");
            self.inventory.events().info("unreadable_repaired", message, &[("array", &name)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_api::ByteRange;
    use braid_inventory::Unreadable;

    #[test]
    fn touching_ranges_are_merged() {
        let some = Unreadable::new(vec![(131_072, 65_536), (0, 65_536), (65_536, 65_536), (1 << 20, 4096)]);
        let range = |offset_bytes, bytes| ByteRange { offset_bytes, bytes };
        assert_eq!(some.first(9), [range(0, 196_608), range(1 << 20, 4096)]);
        assert_eq!((some.first(1).len(), some.bytes()), (1, 200_704));
        assert_eq!(
            some.sentence().expect("there is something"),
            "196.00 KiB cannot be read until written again: bytes 196608 from byte 0, 4096 from byte 1048576"
        );
        assert_eq!(Unreadable::new(Vec::new()).sentence(), None);
    }
}
