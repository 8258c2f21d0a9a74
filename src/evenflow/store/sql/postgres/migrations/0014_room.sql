-- A version that a claim writes is larger than the one before it, by a worker, a flight and a time. With half of a page kept free the
-- last tenth of its rows found no room on it any more, and each of these was entered into its indexes anew.
alter table evenflow.job set (fillfactor = 45);
