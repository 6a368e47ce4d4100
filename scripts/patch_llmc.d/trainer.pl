# The edits of train_gpt2.c, llmc/dataloader.h and the Makefile.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';

our %FILE;
our $ONLY_ADAMW = 'The plugin has only llm.c\'s AdamW, so the losses would differ; restore llm.c\'s ';
my ($TRAINER, $LOADER, $MAKEFILE) = @FILE{qw(trainer loader makefile)};

# Each row has the file, the function ('' for the whole file), the purpose, and a sub that edits a range of
# the file. find() ends the script if the place is missing; instead() moves the original into an #else;
# before() and after() only add lines; known() compares the replaced code with llm.c's versions of it.
our @edits = (
    [ $TRAINER, '', 'the plugin, its tensor table; only rank 0 prints', sub ($f, $in) {
        my $include = find($f, $in, qr/^#include\s+"llmc\/utils\.h"/m, '#include "llmc/utils.h"');
        after($f, $include, helpers($f));
    } ],
    [ $TRAINER, 'gpt2_build_from_checkpoint', 'the plugin reads the parameters in pieces', sub ($f, $in) {
        my $allocate = find($f, $in, 'model->params_memory = malloc_and_point_parameters(...);');
        my $read = find($f, rest($allocate, $in), 'freadCheck(model->params_memory, ..., <file>);');
        my $both = within(span($allocate, $read), $in);
        instead($f, $both, "z_create(model->param_sizes, model->config.num_layers);",
                "z_read_params($read->{1}, model->param_sizes, model->config.num_layers);");
    } ],
    [ $TRAINER, 'gpt2_forward', 'the loss is the mean over the ranks', sub ($f, $in) {
        my $loss = find($f, $in, 'model->mean_loss = <loss>;');
        instead($f, $loss, "model->mean_loss = z_mean($loss->{1});");
    } ],
    [ $TRAINER, 'gpt2_backward', 'no gradients are allocated here', sub ($f, $in) {
        my $lazy = find($f, $in, 'if (model->grads_memory == NULL) {');
        my $inside = rest($lazy, $in);
        my $allocate = find($f, $inside, 'model->grads_memory = malloc_and_point_parameters(...);');
        my $both = within(span($lazy, $allocate), $in);
        instead($f, $both, 'if (model->grads_acts_memory == NULL) {');
    } ],
    map({ my $way = $_; [ $TRAINER, "gpt2_$way", 'hooks around each use of a unit, and its pointers',
                          sub ($f, $in) { each_use($f, $in, $way) } ] } qw(forward backward)),
    [ $TRAINER, 'gpt2_update', 'the plugin reduces and updates', sub ($f, $in) {
        known($f, $in, 'plain.update', $ONLY_ADAMW . 'gpt2_update');
        instead($f, $in, 'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, 0.0f, t };',
                'z_check(zero_step(z, &hyper, NULL));');
    } ],
    [ $TRAINER, 'gpt2_free', 'prints the digest of the parameters; ends the plugin', sub ($f, $in) {
        before($f, find($f, $in, 'free(model->params_memory);'), 'z_finish();');
    } ],
    [ $TRAINER, 'main', 'each rank reads its part of the data; all ranks use the same data', sub ($f, $in) {
        my @loaders = loaders($f, $in);
        $_->{new} = "dataloader_init$_->{1} zero_rank(z), zero_ranks(z)$_->{4}" for @loaders;
        instead_each($f, @loaders);
        compare_inputs($f, @loaders);
    } ],
    [ $TRAINER, 'main', 'the printed number of batches counts all ranks', sub ($f, $in) {
        my @prints = find_any($f, $in, 'printf(... num_tokens / (B * T) ...);');
        $_->{new} = text_of($f, $_) =~ s/\(B\s*\*\s*T\)/(B*T*zero_ranks(z))/r for @prints;
        instead_each($f, @prints);
    } ],
    [ $TRAINER, 'main', 'starts a training pass, or an evaluation or sampling pass on all ranks',
      sub ($f, $in) { begin_passes($f, $in, '0, 1') } ],
    [ $TRAINER, '', 'the model has no memory that the plugin holds', sub ($f, $in) {
        remove_fields($f, qw(params params_memory grads grads_memory m_memory v_memory));
    } ],
    [ $LOADER, 'dataloader_init', 'the shuffle is the same on all ranks', sub ($f, $in) {
        my ($seed) = find_any($f, $in, 'manual_seed(<...> + process_rank);');
        instead($f, $seed, "manual_seed($seed->{1});") if $seed;        # older loaders do not shuffle
    } ],
    [ $MAKEFILE, '', 'train_gpt2 is built with the plugin', sub ($f, $in) {
        my $has = join '', map { "[^\\n]*\\\$$_" } qw{\(CFLAGS\) \^ \(LDLIBS\)};
        my $rule = find($f, $in, qr/^train_gpt2:[ \t]*train_gpt2\.c[^\n]*\n\t$has[^\n]*/m,
                        'the rule "train_gpt2: train_gpt2.c" with $(CFLAGS), $^ and $(LDLIBS)');
        insert($f, line_end($f, $rule->{to}), make_rules(), $f->{what});
    } ],
);

1;
