-- Enqueue by SQL, for programs in any language: one function, and the tasks that it may be asked for.

-- What the declarations of published tasks say, as JSON (evenflow/client/publishing.py). A task that is not here cannot be
-- enqueued by SQL: the database cannot know its rules otherwise, and a job without its rules would break them in silence.
create table evenflow.published (
  task          text primary key,
  rules         text not null,
  published_at  bigint not null
);

create function evenflow.id_text(number bigint) returns text language sql immutable parallel safe
  set search_path = pg_catalog, pg_temp
  as $$ select string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', cast((number >> (60 - 5 * place)) & 31 as integer) + 1, 1), ''
          order by place) from generate_series(0, 12) place $$;

-- The arguments of a call in their usual places, [placed, named], or an error that names what is wrong: as Python does it.
-- Types are not checked here; a worker does, when it reads them by the function's annotations.
create function evenflow.bound_call(task text, rules jsonb, args jsonb) returns jsonb language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
declare
  placed jsonb := '[]';
  named jsonb := '{}';
  names jsonb := rules -> 'names';
  name text;
begin
  if jsonb_typeof(args) = 'array' then
    placed := args;
  elsif jsonb_typeof(args) = 'object' then
    named := args;
  else
    raise exception 'task %: args: expected a JSON array or object, got %', quote_literal(task), coalesce(jsonb_typeof(args), 'null')
      using errcode = 'invalid_parameter_value';
  end if;
  while named ? coalesce(names ->> jsonb_array_length(placed), '') loop
    name := names ->> jsonb_array_length(placed);
    placed := placed || jsonb_build_array(named -> name);
    named := named - name;
  end loop;
  if jsonb_array_length(placed) > jsonb_array_length(names) and not cast(rules ->> 'takes_rest' as boolean) then
    raise exception 'task %: args: expected at most % arguments in order, got %', quote_literal(task),
      jsonb_array_length(names), jsonb_array_length(placed) using errcode = 'invalid_parameter_value';
  end if;
  select r into name from jsonb_array_elements_text(rules -> 'required') r
  where not named ? r and not exists (
    select 1 from jsonb_array_elements_text(names) with ordinality n (v, place) where n.v = r and n.place <= jsonb_array_length(placed))
  limit 1;
  if found then
    raise exception 'task %: args: the argument % is missing', quote_literal(task), quote_literal(name) using errcode = 'invalid_parameter_value';
  end if;
  select k into name from jsonb_object_keys(named) k
  where not rules -> 'keyword_only' ? k and case when names ? k then exists (
      select 1 from jsonb_array_elements_text(names) with ordinality n (v, place) where n.v = k and n.place <= jsonb_array_length(placed))
    else not cast(rules ->> 'takes_extra' as boolean) end
  limit 1;
  if found then
    raise exception 'task %: args: the argument % is unknown, or given twice', quote_literal(task), quote_literal(name)
      using errcode = 'invalid_parameter_value';
  end if;
  return jsonb_build_array(placed, named);
end
$$;

-- The group of a call: as given, or the argument that the task names.
create function evenflow.group_of(task text, rules jsonb, call jsonb, given text) returns text language plpgsql immutable
  set search_path = pg_catalog, pg_temp
as $$
declare
  argument text := rules ->> 'group';
  value jsonb;
begin
  if given is not null or argument is null then
    return given;
  end if;
  value := coalesce(call -> 1 -> argument, (
    select call -> 0 -> cast(place - 1 as integer) from jsonb_array_elements_text(rules -> 'names') with ordinality n (v, place) where v = argument));
  if jsonb_typeof(value) = 'null' then
    return null;
  end if;
  if value is null or jsonb_typeof(value) not in ('string', 'number') or (jsonb_typeof(value) = 'number' and value #>> '{}' !~ '^-?[0-9]+$') then
    raise exception 'task %: its group is worked out in Python; give group_key => ...', quote_literal(task) using errcode = 'invalid_parameter_value';
  end if;
  return value #>> '{}';
end
$$;

-- Stores a call of a published task in the caller's transaction and returns the job's id; where an open job has the same
-- unique key, that one's. The job arrives: it takes no lock that others wait for, and a worker admits it after the commit,
-- with its turn, its queue's caps and bound. Its id is made as evenflow/ids.py makes them. What the database cannot do (sign, work out keys) is refused, never left out.
create function evenflow.enqueue(
  task text, args jsonb default '[]', queue text default null, priority integer default null, run_after interval default null,
  run_at timestamptz default null, group_key text default null, unique_key text default null, good_until timestamptz default null
) returns text language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
  rules jsonb;
  now bigint := evenflow.now_us();
  line text;
  rank integer;
  tenant text;
  bound jsonb;
  stored text;
  due bigint;
  expires bigint;
  key text;
  number bigint;
  holder bigint;
begin
  select cast(p.rules as jsonb) into rules from evenflow.published p where p.task = enqueue.task;
  if rules is null then
    raise exception 'task %: it is not published; run: evenflow publish MODULE:APP', quote_literal(enqueue.task)
      using errcode = 'invalid_parameter_value';
  end if;
  if rules ->> 'refusal' is not null then
    raise exception 'task %: %; enqueue it by Python', quote_literal(enqueue.task), rules ->> 'refusal' using errcode = 'feature_not_supported';
  end if;
  line := coalesce(enqueue.queue, rules ->> 'queue');
  if rules -> 'queues' ->> line is not null then
    raise exception 'queue %: %; enqueue by Python', quote_literal(line), rules -> 'queues' ->> line using errcode = 'feature_not_supported';
  end if;
  if not rules -> 'queues' ? line and not (cast(rules ->> 'is_open' as boolean) and line ~ '^[A-Za-z][A-Za-z0-9_.-]{0,62}$') then
    raise exception 'queue %: it is not declared', quote_literal(line) using errcode = 'invalid_parameter_value';
  end if;
  rank := coalesce(enqueue.priority, cast(rules ->> 'priority' as integer));
  if rank not between -100 and 100 then
    raise exception 'priority: expected -100 to 100, got %', rank using errcode = 'invalid_parameter_value';
  end if;
  if enqueue.run_after is not null and enqueue.run_at is not null then
    raise exception 'expected run_after or run_at, got both' using errcode = 'invalid_parameter_value';
  end if;
  bound := evenflow.bound_call(enqueue.task, rules, enqueue.args);
  tenant := evenflow.group_of(enqueue.task, rules, bound, enqueue.group_key);
  if length(tenant) > 255 or length(enqueue.unique_key) > 255 or tenant ~ '[[:cntrl:]]' or enqueue.unique_key ~ '[[:cntrl:]]' then
    raise exception 'group_key, unique_key: expected at most 255 characters without control characters' using errcode = 'invalid_parameter_value';
  end if;
  stored := cast(bound as text);
  if octet_length(stored) > cast(rules ->> 'max_bytes' as integer) then
    raise exception 'task %: args: expected at most % bytes, got %; store the data elsewhere and send a reference', quote_literal(enqueue.task),
      rules ->> 'max_bytes', octet_length(stored) using errcode = 'program_limit_exceeded';
  end if;
  due := cast(extract(epoch from enqueue.run_at) * 1000000 as bigint);
  due := coalesce(due, now + cast(extract(epoch from enqueue.run_after) * 1000000 as bigint));
  expires := coalesce(cast(extract(epoch from enqueue.good_until) * 1000000 as bigint),
    now + cast(rules ->> 'good_for_us' as bigint), cast(rules ->> 'good_until' as bigint));
  key := case when enqueue.unique_key is not null then (rules ->> 'scope') || ':' || enqueue.unique_key end;
  for attempt in 1..5 loop
    number := ((now / 1000 - 1735689600000) << 22) | ((nextval('evenflow.id_block') * 32) & 4194303);
    insert into evenflow.job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, good_until, unique_key,
      fails_on_crash, payload, state)
    values (number, line, enqueue.task, rank, tenant, cast(rules ->> 'max_attempts' as integer), now, greatest(coalesce(due, now), now),
      expires, key, cast(rules ->> 'fails_on_crash' as boolean), stored, 'arriving')
    on conflict do nothing;
    if found then
      perform pg_notify((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.oid = cast('evenflow.job' as regclass)) || '_wake', '+');
      return evenflow.id_text(number);
    end if;
    select j.id into holder from evenflow.job j where j.unique_key = key;
    if found then
      return evenflow.id_text(holder);
    end if;
  end loop;
  raise exception 'unique_key: % changed hands several times; try again', quote_literal(enqueue.unique_key) using errcode = 'serialization_failure';
end
$$;

revoke all on function evenflow.enqueue from public;
revoke all on function evenflow.bound_call from public;
revoke all on function evenflow.group_of from public;
