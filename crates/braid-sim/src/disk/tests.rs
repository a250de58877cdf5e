use super::*;

fn disk(volatile: bool, torn_bytes: usize) -> SimDisk {
    let mut rng = Rng::new(1);
    let profile = Profile { volatile, torn_bytes, ..Profile::healthy(&mut rng) };
    SimDisk::new(0, 1 << 20, false, profile)
}

fn write(disk: &mut SimDisk, op: u64, offset: u64, byte: u8, len: usize, fua: bool) {
    disk.land(op, offset, &vec![byte; len]);
    disk.complete_write(op, offset, len, fua);
}

fn byte(disk: &SimDisk, offset: u64) -> u8 {
    let mut out = [0; 512];
    assert!(disk.read(offset, &mut out));
    out[0]
}

#[test]
fn unflushed_data_is_read_and_lost() {
    let mut d = disk(true, 512);
    write(&mut d, 1, 4096, 7, 8192, false);
    assert_eq!((byte(&d, 4096), byte(&d, 12288 - 512), byte(&d, 12288)), (7, 7, 0));
    assert_eq!(d.dirty_sectors(), 16);
    assert_eq!(d.cut_power(Survival::None, &mut Rng::new(1)), 16);
    assert_eq!(byte(&d, 4096), 0);
}

#[test]
fn a_flush_covers_writes_completed_before_it_began() {
    let mut d = disk(true, 512);
    write(&mut d, 1, 0, 1, 512, false);
    d.land(2, 512, &[2; 512]);
    let begun = d.flush_begins();
    d.complete_write(2, 512, 512, false);
    write(&mut d, 3, 1024, 3, 512, false);
    d.complete_flush(begun);
    d.cut_power(Survival::None, &mut Rng::new(1));
    assert_eq!((byte(&d, 0), byte(&d, 512), byte(&d, 1024)), (1, 0, 0));
}

#[test]
fn fua_is_durable_and_overtakes_what_it_covers() {
    let mut d = disk(true, 512);
    write(&mut d, 1, 0, 1, 1024, false);
    write(&mut d, 2, 0, 2, 512, true);
    write(&mut d, 3, 512, 3, 512, false);
    for survival in [Survival::None, Survival::Some(1_000_000), Survival::Some(500_000)] {
        for seed in 0..20 {
            let mut d2 = disk(true, 512);
            write(&mut d2, 1, 0, 1, 1024, false);
            write(&mut d2, 2, 0, 2, 512, true);
            d2.cut_power(survival, &mut Rng::new(seed));
            assert_eq!(byte(&d2, 0), 2, "an older write came back over a durable one");
        }
    }
    d.cut_power(Survival::All, &mut Rng::new(1));
    assert_eq!((byte(&d, 0), byte(&d, 512)), (2, 3));
}

#[test]
fn any_subset_survives_in_torn_units() {
    for (torn, whole) in [(512, false), (4096, true)] {
        let mut mixed = 0;
        for seed in 0..50 {
            let mut d = disk(true, torn);
            write(&mut d, 1, 0, 1, 4096, true);
            write(&mut d, 2, 0, 2, 4096, false);
            write(&mut d, 3, 0, 3, 4096, false);
            d.cut_power(Survival::Some(700_000), &mut Rng::new(seed));
            let seen: BTreeSet<u8> = (0..8).map(|s| byte(&d, s * 512)).collect();
            assert!(seen.iter().all(|b| (1..=3).contains(b)));
            mixed += u32::from(seen.len() > 1);
        }
        assert_eq!(mixed == 0, whole, "{mixed} torn blocks with units of {torn}");
    }
}

#[test]
fn a_later_flush_never_repairs_a_failed_one() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut d = disk(true, 512);
        write(&mut d, 1, 0, 1, 512, false);
        d.fail_flush(&mut Rng::new(seed));
        assert_eq!(byte(&d, 0), 1);
        d.complete_flush(d.flush_begins());
        d.cut_power(Survival::None, &mut Rng::new(seed));
        lost += u32::from(byte(&d, 0) == 0);
    }
    assert!((1..20).contains(&lost), "{lost}");
}

#[test]
fn a_disk_without_a_cache_loses_no_completed_write() {
    let mut d = disk(false, 512);
    write(&mut d, 1, 0, 1, 512, false);
    d.land(2, 512, &[2; 512]);
    d.cut_power(Survival::None, &mut Rng::new(1));
    assert_eq!((byte(&d, 0), byte(&d, 512)), (1, 0));
}

#[test]
fn writing_an_unreadable_sector_repairs_it() {
    let mut d = disk(true, 512);
    d.make_unreadable(4096 + 512);
    assert!(!d.read(4096, &mut [0; 4096]));
    assert!(d.read(4096, &mut [0; 512]));
    write(&mut d, 1, 4096, 1, 4096, false);
    assert!(d.read(4096, &mut [0; 4096]));
}

#[test]
fn a_write_outside_the_owned_blocks_is_found() {
    let mut disk = SimDisk::new(0, 1 << 20, true, Profile::healthy(&mut Rng::new(1)));
    assert_eq!(disk.first_stray(|_| false), None);
    write(&mut disk, 1, 0, 7, 512, false);
    assert_eq!(disk.first_stray(|at| at == 0), None);
    assert_eq!(disk.first_stray(|_| false), Some(0));
    // Written with the factory content: this cannot be noticed and does no harm.
    let mut was = vec![0; BLOCK_BYTES];
    disk.read(BLOCK_BYTES as u64, &mut was);
    disk.land(2, BLOCK_BYTES as u64, &was);
    assert_eq!(disk.first_stray(|at| at == 0), None);
}
