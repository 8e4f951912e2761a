-- The reading of the clock by which the tables were written: boot, and seconds by which the time of day was ahead of the boot clock.
SELECT boot_id, ahead FROM clock
