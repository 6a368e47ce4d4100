#!/usr/bin/env perl
# Checks the direction of dependencies in a source tree: which file includes which header, and which object
# needs a symbol from which other object. Prints each violation with file, line and symbol; the exit status is
# 1 if there are any. tests/test_house.sh runs it and contains the tables.
#   tests/house.pl LAYERS PLACES OWNERS ROOT [BUILD...]
#     LAYERS  a file that lists the layers of llmc_zero/ from the top: "name: files without .c, or folders/"
#     PLACES  a file that lists the places that may print or end the process: "file symbol reason"
#     OWNERS  a file that lists the members of struct zero that only one file may touch: "member file"
#     ROOT    the tree with llmc_zero/, gpt2/, trainer/ and dev/lessons/
#     BUILD   folders with the objects of llmc_zero/, gpt2/ and trainer/
use strict;
use warnings;

my ($layers_file, $places_file, $owners_file, $root, @builds) = @ARGV;
my $found = 0;

sub violation {
    my ($where, $message) = @_;
    print "$where: $message\n";
    $found++;
}

# ---- the sources

sub lines_of {
    my ($file) = @_;
    open(my $in, '<', $file) or die "$file: $!\n";
    my @lines = <$in>;
    close($in);
    return @lines;
}

chdir($root) or die "$root: $!\n";
my @files = split(/\n/, `find llmc_zero gpt2 trainer dev/lessons *.cu 2>/dev/null | sort`);
my @sources = grep { /\.(c|h|cu|cuh|cpp)$/ } @files;
my %text = map { $_ => [lines_of($_)] } @sources;
die "$root: no llmc_zero/zero.h\n" if !$text{'llmc_zero/zero.h'};

# Calls $check(line number, line without its comment) for each line of a file.
sub each_line {
    my ($file, $check) = @_;
    my $n = 0;
    $check->(++$n, $_ =~ s{//.*}{}r) for @{ $text{$file} };
}

# $first{file}{word}: the first line with that word
my %first;
for my $file (@sources) {
    each_line($file, sub { my ($n, $code) = @_; $first{$file}{$_} //= $n for $code =~ /\w+/g; });
}
sub line_of { my ($file, $symbol) = @_; return $first{$file}{$symbol} // 0; }

# "llmc_zero/net/../comm/comm.h" is llmc_zero/comm/comm.h.
sub tidy {
    my ($path) = @_;
    1 while $path =~ s{(^|/)(?!\.\./)[^/]+/\.\./}{$1};
    $path =~ s{(^|/)\./}{$1}g;
    return $path;
}

# Each include as [file, line, name, path in the project or undef].
my (@includes, %includes_of);
for my $file (@sources) {
    my ($folder) = $file =~ m{^(.*/)};
    each_line($file, sub {
        my ($n, $code) = @_;
        return if $code !~ /^\s*#\s*include\s*([<"])([^>"]+)[>"]/;
        my ($kind, $name, $target) = ($1, $2);
        if ($kind eq '"') {
            my $relative = tidy(($folder // '') . $name);
            $target = -e $relative ? $relative : tidy($name);
            violation("$file:$n", "includes $name, which does not exist.") if !-e $target;
        }
        push @includes, [$file, $n, $name, $target];
        push @{ $includes_of{$file} }, $includes[-1];
    });
}

# Returns the "file:line" that makes a file's object need a symbol: in the file or in a header it includes.
sub place_of {
    my ($file, $symbol) = @_;
    my $line = line_of($file, $symbol);
    return "$file:$line" if $line;
    for my $include (@{ $includes_of{$file} }) {
        my $header = $include->[3] // '';
        my $inner = $text{$header} ? line_of($header, $symbol) : 0;
        return "$file:$include->[1] (through $header:$inner)" if $inner;
    }
    return $file;
}

# ---- which files may include which headers

my $public = '^llmc_zero/zero(_checkpoint|_job|_info|_deepspeed|_settings|_optimizer|_config|_virtual)?\.h$';
my @banned = (
    # files | headers that they may not include | reason
    ['^gpt2/', '^mpi\.h$|nccl', 'gpt2/ must not depend on MPI or NCCL'],
    ['^gpt2/', '^llmc_zero/|/llmc_zero/|^zero(_job)?\.h$', 'gpt2/ must not depend on the plugin'],
    ['^gpt2/', '^trainer/', 'gpt2/ must not depend on the trainer'],
    ['^llmc_zero/', '^gpt2/', 'llmc_zero/ must not depend on GPT-2'],
    ['^llmc_zero/', '^trainer/', 'llmc_zero/ must not depend on the trainer'],
    ['^(?!dev/)', '^(dev|tests)/', 'shipped code must not include dev/ or tests/'],
    ['^dev/lessons/', '^(gpt2|trainer)/|^llmc_zero/(?!zero\w*\.h$)',
        'lessons use only the public headers of the plugin'],
    ['^(?!llmc_zero/net/mpi\.c$|dev/)', '^mpi\.h$', 'only llmc_zero/net/mpi.c includes mpi.h'],
    ['^(?!.*nccl)', '^nccl\.h$', 'only files with nccl in their names include nccl.h'],
    ['^(?!.*(cuda|cudnn))', '^(cuda|cublas|cudnn|nvtx)', 'only files with cuda in their names include it'],
);
for my $include (@includes) {
    my ($file, $line, $name, $target) = @$include;
    for my $ban (@banned) {
        my ($files, $what, $why) = @$ban;
        next if $file !~ /$files/;
        violation("$file:$line", "includes $name, but $why.") if ($target // $name) =~ /$what/;
    }
    next if $file !~ /$public/;
    next if defined $target ? $target =~ /$public/ : $name =~ /^std\w+\.h$/;
    violation("$file:$line", "includes $name, but public headers include only headers of the C library.");
}
for my $file (grep { m{^llmc_zero/} } @sources) {
    my $n = 0;
    for (@{ $text{$file} }) {       # comments too
        $n++;
        violation("$file:$n", "names $1, but llmc_zero/ must not depend on GPT-2.") if /\b(gpt2_\w*)/;
    }
}

# ---- owners of struct zero's members: other files may name neither the member nor its types

my %owner = map { /^\s*(\w+)\s+(\S+)/ ? ($1 => $2) : () } lines_of($owners_file);
my $members = join('|', sort keys %owner) || '(?!)';
for my $file (grep { m{^llmc_zero/} && $_ ne 'llmc_zero/internal.h' } @sources) {
    each_line($file, sub {
        my ($n, $code) = @_;
        while ($code =~ /(?:\bz|\))\s*->\s*($members)\b|\bstruct ($members)(?:_\w+)?\b/g) {
            my $member = $1 // $2;
            next if $file =~ s{\.h$}{.c}r eq $owner{$member};
            violation("$file:$n", "touches $member of struct zero, but only $owner{$member} may.");
        }
    });
}

# ---- the layers

my (@layer_names, %layer_of_pattern);
for (lines_of($layers_file)) {
    next if !/^\s*(\w[\w ]*):\s*(.*?)\s*$/;
    push @layer_names, $1;
    $layer_of_pattern{$_} = $#layer_names for split(' ', $2);
}

# Returns the number of a file's layer; the top layer is 0. An entry "zero.h" takes precedence over "zero",
# and "zero" over a folder.
sub layer_of {
    my ($file) = @_;
    my $name = $file =~ s{^llmc_zero/}{}r;
    my $stem = $name =~ s{\.\w+$}{}r;
    my ($folder) = $stem =~ m{^(.*/)};
    return $layer_of_pattern{$name} // $layer_of_pattern{$stem} // $layer_of_pattern{ $folder // '' };
}

# Returns a file's module: the files of its folder in the same layer.
sub module_of {
    my ($file) = @_;
    my ($folder) = $file =~ m{^(.*/)};
    return "$folder ($layer_names[layer_of($file)])";
}

for my $file (grep { m{^llmc_zero/} } @sources) {
    next if defined layer_of($file);
    violation($file, 'is missing from the table of layers in tests/test_house.sh.');
    delete $text{$file};
}
@sources = grep { $text{$_} } @sources;
@includes = grep { $text{ $_->[0] } } @includes;

# ---- graphs: $graph{from}{to} = [[where, what it uses]...], by symbol, and in llmc_zero/ also by include

my (%by_include, %by_symbol, %by_either);

sub arrow {
    my ($graph, $from, $to, $where, $what) = @_;
    push @{ $graph->{$from}{$to} }, [$where, $what];
    push @{ $by_either{$from}{$to} }, [$where, $what];
    return if layer_of($from) <= layer_of($to);
    violation($where, "uses $what of $to, which is in a higher layer ($layer_names[layer_of($to)] above "
        . "$layer_names[layer_of($from)]).");
}

for my $include (@includes) {
    my ($file, $line, $name, $target) = @$include;
    next if $file !~ m{^llmc_zero/} || !defined $target || !$text{$target} || $target eq $file;
    next if $target !~ m{^llmc_zero/};
    arrow(\%by_include, $file, $target, "$file:$line", 'the declarations');
}

# Takes a map object => source. Returns two maps: symbol => the source that defines it, and source => the
# symbols that it needs.
sub symbols_of {
    my ($source_of) = @_;
    my (%defines, %needs);
    my @objects = sort keys %$source_of;
    for (@objects ? `nm -A @objects` : ()) {
        my ($object, $kind, $symbol) = /^([^:]+):[0-9a-f ]* ([A-Za-z]) (\S+)/ or next;
        my $source = $source_of->{$object};
        push @{ $needs{$source} }, $symbol if $kind =~ /[Uvw]/;
        $defines{$symbol} = $source if $kind =~ /[ABCDRSTi]/;
    }
    return (\%defines, \%needs);
}

my %may_print;
for (lines_of($places_file)) {
    next if !/^\s*(\S+)\s+(\S+)\s+\S/;
    $may_print{"$1 $2"} = 1;
    next if $text{$1} && line_of($1, $2);
    violation($1, "does not name $2: its entry in the table of places in tests/test_house.sh is unused.");
}
my %prints_or_ends = map { $_ => 1 } qw(printf vprintf __printf_chk __vprintf_chk puts putchar perror stdout
    stderr exit _exit _Exit quick_exit abort);
my %reported;

for my $build (@builds) {
    my %source_of;
    for my $source (grep { m{^(llmc_zero|gpt2|trainer)/.*\.(c|cu|cpp)$} } @sources) {
        (my $object = "$build/$source") =~ s{\.\w+$}{.o};
        if (-e $object) { $source_of{$object} = $source }
        # A source without an object would go unchecked.
        elsif ($source =~ m{^(?!gpt2/.*_cuda).*\.c$}) { violation($source, "has no object in $build/.") }
    }
    my ($defines, $needs) = symbols_of(\%source_of);
    for my $source (sort keys %$needs) {
        for my $symbol (@{ $needs->{$source} }) {
            my $target = $defines->{$symbol};
            my $where = place_of($source, $symbol);
            if (defined $target && $target ne $source && $source !~ m{^llmc_zero/}) {
                push @{ $by_symbol{$source}{$target} }, [$where, $symbol];
            }
            next if $source =~ m{^trainer/} || $reported{"$source $symbol"}++;
            if ($source =~ m{^gpt2/}) {
                my $foreign = $symbol =~ /^(MPI_|ompi_|nccl[A-Z]|zero_)/ || ($target // '') =~ m{^llmc_zero/};
                next if !$foreign;
                violation($where, "needs $symbol, but gpt2/ must not depend on MPI, NCCL or the plugin.");
                next;
            }
            if ($prints_or_ends{$symbol} && !$may_print{"$source $symbol"}) {
                violation($where, "needs $symbol, but the plugin must not print or end the process.");
            }
            next if !defined $target || $target eq $source;
            if ($target =~ m{^gpt2/}) {
                violation($where, "needs $symbol of $target, but llmc_zero/ must not depend on GPT-2.");
                next;
            }
            arrow(\%by_symbol, $source, $target, $where, $symbol);
        }
    }
}

# ---- cycles

# Returns the shortest path between two nodes as a list of nodes, or an empty list.
sub way {
    my ($graph, $from, $to) = @_;
    my (%before, @queue);
    @queue = ($from);
    while (defined(my $node = shift @queue)) {
        for my $next (sort keys %{ $graph->{$node} // {} }) {
            next if exists $before{$next};
            $before{$next} = $node;
            push @queue, $next;
        }
    }
    return () if !exists $before{$to};
    my @nodes = ($to);
    do { unshift @nodes, $before{ $nodes[0] } } while $nodes[0] ne $from;
    return @nodes;
}

# Reports each shortest cycle once, with all its edges.
sub no_cycles {
    my ($graph, $kind) = @_;
    my %seen;
    for my $node (sort keys %$graph) {
        my @nodes = way($graph, $node, $node);
        next if !@nodes || $seen{ join(' ', sort @nodes[1 .. $#nodes]) }++;
        my @uses;
        for my $i (0 .. $#nodes - 1) {
            my $use = $graph->{ $nodes[$i] }{ $nodes[$i + 1] }[0];
            push @uses, "$nodes[$i] uses $use->[1] of $nodes[$i + 1] at $use->[0]";
        }
        violation($node, "$kind need each other: " . join('; ', @uses) . '.');
    }
}

# A source and its header are one node in the graph of includes, unless the header has its own layer entry.
sub stem_of {
    my ($file) = @_;
    return $file if defined $layer_of_pattern{ $file =~ s{^llmc_zero/}{}r };
    return $file =~ s{\.\w+$}{}r;
}

# Returns the graph with nodes of the same name merged.
sub joined {
    my ($graph, $name_of) = @_;
    my %result;
    for my $from (keys %$graph) {
        for my $to (keys %{ $graph->{$from} }) {
            my ($a, $b) = ($name_of->($from), $name_of->($to));
            push @{ $result{$a}{$b} }, @{ $graph->{$from}{$to} } if $a ne $b;
        }
    }
    return \%result;
}

no_cycles(\%by_symbol, 'files');
no_cycles(joined(\%by_include, \&stem_of), 'headers');
no_cycles(joined(\%by_either, \&module_of), 'modules');
exit($found ? 1 : 0);
